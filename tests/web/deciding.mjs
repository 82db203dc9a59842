// The cases about requests for approval and about the output of jobs. `cases.mjs` runs them among the others.

import assert from "node:assert/strict";

import { post } from "./browser.mjs";
import { askFor, freeSpot, named } from "./shared.mjs";

export const deciding = {
  async "an-approver-decides-on-mine"(browser) {
    const page = await browser.open(0, "/mine");
    const owner = await browser.open(1, "/mine");
    const spot = await freeSpot(page);
    const reason = "the <b>deadline</b><script>alert(1)</script>";
    let alarms = 0;
    page.on("dialog", (dialog) => { alarms += 1; dialog.dismiss(); });
    const first = await askFor(owner, spot, reason);
    const request = page.locator(".request", { has: page.locator(`[data-approve="${first.id}"]`) });
    await request.waitFor();
    const text = await request.textContent();
    assert.ok(text.includes(`${browser.people[1].name} asks for 1 GPU on ${spot.node} for 3d`), text);
    assert.ok(text.includes(reason), text);
    assert.match(text, /at most/);
    assert.match(text, /\d of the \d GPUs that fit the request/);
    assert.equal(await page.locator("main dd script, main dd b").count(), 0);
    assert.equal(await page.locator("#to-decide b").textContent(), "1", "the tab counts it");
    await owner.locator("tr", { hasText: first.id }).locator(".state-requested").waitFor();
    assert.equal(await owner.locator("[data-approve]").count(), 0, "nobody decides for themselves");
    const refused = await post(owner, `/api/v1/reservations/${first.id}/approve`, {});
    assert.equal(refused.status, 403, JSON.stringify(refused.body));
    for (const colorScheme of ["light", "dark"]) {
      for (const width of [1400, 390]) {
        const viewport = { width, height: width === 390 ? 844 : 860 };
        const shown = await browser.open(0, "/mine", { colorScheme, viewport });
        const wide = await shown.evaluate(() => document.documentElement.scrollWidth > innerWidth);
        assert.ok(!wide, `the request is wider than ${width} px`);
        await browser.shoot(shown, `request-${colorScheme}-${width}`);
        await shown.locator("[data-deny]").click();
        await shown.locator("dialog.question[open]").waitFor();
        await named(shown);
        await browser.shoot(shown, `deny-${colorScheme}-${width}`);
      }
    }
    const approve = page.locator(`[data-approve="${first.id}"]`);
    await approve.click();
    const dialog = page.locator("dialog.question[open]");
    await dialog.waitFor();
    let sent = 0;
    page.on("request", (one) => (sent += one.method() === "POST" && one.url().endsWith("/approve")));
    await page.keyboard.press("Escape");
    await dialog.waitFor({ state: "detached" });
    assert.equal(sent, 0, "Esc answers no");
    assert.ok(await approve.evaluate((button) => button === document.activeElement), "the focus is back");
    await approve.click();
    await page.locator("dialog.question[open]").waitFor();
    await page.keyboard.press("Enter");
    await page.locator(".notice", { hasText: `${first.id} is approved` }).waitFor();
    assert.equal(sent, 1);
    await request.waitFor({ state: "detached" });
    await page.locator("#to-decide").waitFor({ state: "hidden" });
    await owner.locator("tr", { hasText: first.id }).locator(".state-scheduled").waitFor();
    assert.equal(alarms, 0);
  },

  async "a-denial-needs-a-reason"(browser) {
    const page = await browser.open(0);
    const owner = await browser.open(1);
    const spot = await freeSpot(page);
    const { id } = await askFor(owner, spot, "more");
    // The page of the reservation has the same buttons.
    await page.goto(`${browser.url}/reservation/${id}`);
    await page.locator(`[data-deny="${id}"]`).click();
    const dialog = page.locator("dialog.question[open]");
    await dialog.waitFor();
    await page.keyboard.press("Enter");
    assert.ok(await dialog.isVisible(), "an empty reason is not sent");
    await page.locator("#question-text").fill("one week\nis enough <i>");
    await dialog.locator("button.danger").click();
    await page.locator(".notice", { hasText: `${id} is denied` }).waitFor();
    await page.locator(`[data-deny="${id}"]`).waitFor({ state: "detached" });
    await page.locator("td.note", { hasText: "one week is enough <i>" }).first().waitFor();
  },

  async "two-approvers-and-one-is-late"(browser) {
    const pages = [await browser.open(0, "/mine"), await browser.open(0, "/mine")];
    const owner = await browser.open(1);
    const { id } = await askFor(owner, await freeSpot(owner), "twice");
    for (const page of pages) {
      await page.locator(`[data-approve="${id}"]`).click();
      await page.locator("dialog.question[open]").waitFor();
    }
    await pages[0].locator("dialog.question button.main").click();
    await pages[0].locator(".notice", { hasText: `${id} is approved` }).waitFor();
    await pages[1].locator(`[data-approve="${id}"]`).waitFor({ state: "detached" });
    await pages[1].locator("dialog.question button.main").click();
    await pages[1].locator(".notice", { hasText: "was decided already, or it is over" }).waitFor();
    await browser.shoot(pages[1], "late");
  },

  async "a-job-page-shows-its-output"(browser) {
    const job = browser.job();
    const page = await browser.open(0, `/job/${job}`);
    let alarms = 0;
    page.on("dialog", (dialog) => { alarms += 1; dialog.dismiss(); });
    const text = page.locator("#output-text");
    await text.waitFor();
    const lines = async () => (await text.textContent()).trim().split("\n");
    assert.match((await lines()).at(-1), /^step \d+ <script>alert\(1\)<\/script>$/, "colours are left out");
    assert.equal(await page.locator("#output script").count(), 0);
    const before = (await lines()).at(-1);
    await page.waitForFunction(
      (last) => !document.getElementById("output-text").textContent.trim().endsWith(`\n${last}`), before,
    );
    await named(page);
    let asked = 0;
    page.on("request", (request) => { if (request.url().endsWith("/output")) asked += 1; });
    await page.evaluate(() => {
      Object.defineProperty(document, "hidden", { configurable: true, get: () => true });
      document.dispatchEvent(new Event("visibilitychange"));
    });
    // An answer that was under way may come.
    await page.waitForTimeout(500);
    asked = 0;
    await page.waitForTimeout(4_500);
    assert.equal(asked, 0, "a hidden page asks for nothing");
    await page.evaluate(() => {
      delete document.hidden;
      document.dispatchEvent(new Event("visibilitychange"));
    });
    await page.waitForTimeout(500);
    assert.equal(asked, 1, "it asks when it is seen again");
    await page.uncheck("#output-follow");
    await page.waitForTimeout(500);
    asked = 0;
    await page.waitForTimeout(4_500);
    assert.equal(asked, 0, "nothing is followed that nobody wants to");
    await page.click("#output-load");
    await page.waitForTimeout(500);
    assert.equal(asked, 1);
    assert.equal(alarms, 0);
    for (const colorScheme of ["light", "dark"]) {
      for (const width of [1400, 390]) {
        const viewport = { width, height: width === 390 ? 844 : 860 };
        const shown = await browser.open(0, `/job/${job}`, { colorScheme, viewport });
        await shown.locator("#output-text").waitFor();
        const wide = await shown.evaluate(() => document.documentElement.scrollWidth > innerWidth);
        assert.ok(!wide, `the output is wider than ${width} px`);
        await shown.locator("#output").scrollIntoViewIfNeeded();
        await browser.shoot(shown, `output-${colorScheme}-${width}`);
      }
    }
  },

  async "others-do-not-see-the-output"(browser) {
    const job = browser.job();
    const page = await browser.open(1, `/job/${job}`);
    await page.locator("#output", { hasText: `Only ${browser.people[0].name} and admins` }).waitFor();
    assert.equal(await page.locator("#output-text").count(), 0);
    const status = await page.evaluate(async (id) => (await fetch(`/api/v1/jobs/${id}/output`)).status, job);
    assert.equal(status, 403);
  },

  async "a-node-that-does-not-answer-is-said"(browser) {
    const job = browser.job();
    const page = await browser.open(0, "/mine");
    let answer = {
      state: "running", attempt: 2, is_over: false, text: "", is_complete: false, is_cut: false,
      notes: ["cannot show the output of it: titan01 is not connected"],
    };
    await page.route("**/output", (route) => route.fulfill({ json: answer }));
    await page.goto(`${browser.url}/job/${job}`);
    await page.locator("#output-notes", { hasText: "titan01 is not connected" }).waitFor();
    assert.equal(await page.locator("#output-state").textContent(), "running, attempt 2");
    answer = { ...answer, text: "step 1\n", is_complete: true, notes: [] };
    await page.locator("#output-text", { hasText: "step 1" }).waitFor();
    answer = { ...answer, text: "", is_complete: false, notes: ["titan01 is silent"] };
    await page.locator("#output-notes", { hasText: "titan01 is silent" }).waitFor();
    assert.equal(await page.locator("#output-text").textContent(), "step 1\n", "less does not replace more");
    answer = { ...answer, state: "completed", is_over: true, text: "the end\n", is_complete: true, is_cut: true, notes: [] };
    await page.locator("#output-text", { hasText: "the end" }).waitFor();
    assert.equal(await page.locator("#output-notes").textContent(), "Only the end is shown.");
    assert.ok(await page.locator("#output-follow").isDisabled(), "nothing more comes");
    await page.unroute("**/output");
    await page.route("**/output", (route) => route.abort());
    await page.click("#output-load");
    await page.locator("#output-notes", { hasText: "The controller does not answer." }).waitFor();
    assert.equal(await page.locator("#output-text").textContent(), "the end\n", "what was read stays");
  },
};
