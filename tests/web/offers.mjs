// The case about places of the waiting list that are offered. `cases.mjs` runs it among the others.

import assert from "node:assert/strict";

import { named } from "./shared.mjs";

export const offers = {
  async "an-owner-answers-offers"(browser) {
    const [first, second] = browser.offers();
    const page = await browser.open(1, "/mine");
    const other = await browser.open(0, "/mine");
    const late = await browser.open(1, "/mine");
    const row = (id) => page.locator("tr", { hasText: id });
    for (const id of [first, second]) {
      await row(id).locator(".state-offered").waitFor();
      assert.match(await row(id).textContent(), /until/);
    }
    assert.equal(await other.locator("[data-accept], [data-decline]").count(), 0, "nobody answers for others");
    for (const colorScheme of ["light", "dark"]) {
      for (const width of [1400, 390]) {
        const viewport = { width, height: width === 390 ? 844 : 860 };
        const shown = await browser.open(1, "/mine", { colorScheme, viewport });
        await shown.locator("[data-accept]").first().waitFor();
        const wide = await shown.evaluate(() => document.documentElement.scrollWidth > innerWidth);
        assert.ok(!wide, `the offers are wider than ${width} px`);
        await named(shown);
        await browser.shoot(shown, `offers-${colorScheme}-${width}`);
      }
    }
    let sent = 0;
    page.on("request", (one) => (sent += one.method() === "POST"));
    const decline = page.locator(`[data-decline="${second}"]`);
    const dialog = page.locator("dialog.question[open]");
    await decline.click();
    await dialog.filter({ hasText: "The next offer comes in 4 hours at the earliest." }).waitFor();
    await browser.shoot(page, "decline");
    await page.keyboard.press("Escape");
    await dialog.waitFor({ state: "detached" });
    assert.equal(sent, 0, "Esc answers no");
    assert.ok(await decline.evaluate((button) => button === document.activeElement), "the focus is back");
    await decline.click();
    await dialog.waitFor();
    await page.keyboard.press("Enter");
    await page.locator(".notice", { hasText: `The offer of ${second} is declined.` }).waitFor();
    await row(second).locator(".state-waiting").waitFor();
    assert.equal(await row(second).locator("[data-accept]").count(), 0);
    // A reservation that only waits has not begun: a question about it says so.
    await row(second).locator("[data-release]").click();
    await dialog.filter({ hasText: "It has not begun yet." }).waitFor();
    await page.keyboard.press("Escape");
    // No answer comes of the first attempt, and two clicks are one request.
    const ids = [];
    await page.route("**/accept", async (route) => {
      ids.push(route.request().postDataJSON().request_id);
      if (ids.length === 1) return route.abort();
      return route.continue();
    });
    await page.locator(`[data-accept="${first}"]`).dblclick();
    await page.locator(".notice", { hasText: `The offer of ${first} is accepted.` }).waitFor();
    assert.equal(new Set(ids).size, 1, "it is the same request each time");
    await row(first).locator(".state-scheduled, .state-active").waitFor();
    // A page that still shows the offer is told what became of it. Its stream of events is ended here.
    await late.locator("tr", { hasText: second }).locator(".state-waiting").waitFor();
    const refused = await late.evaluate(async (id) => {
      const options = { method: "POST", headers: { "Content-Type": "application/json" }, body: "{}" };
      const answer = await fetch(`/api/v1/reservations/${id}/accept`, options);
      return { status: answer.status, body: await answer.json() };
    }, second);
    assert.equal(refused.status, 409, JSON.stringify(refused.body));
    assert.match(JSON.stringify(refused.body), /keeps its place/);
  },
};
