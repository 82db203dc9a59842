// The cases about what a GPU did in each minute. `cases.mjs` runs them among the others.

import assert from "node:assert/strict";

import { calendar } from "./browser.mjs";
import { DAY, named } from "./shared.mjs";

const MINUTE = 60_000;

/** The page of the GPU that the job runs on. */
async function pathOf(page, job) {
  const gpu = (await calendar(page)).find((one) => JSON.stringify(one.taken).includes(job));
  assert.ok(gpu, `${job} has a GPU`);
  return `/gpu/${gpu.node}/${gpu.index}`;
}

/** A day on which somebody computed in the morning, the node was off at noon, and a job idled in the afternoon. */
function curve(url) {
  const from = Number(new URL(url).pathname.split("/").at(-2));
  const row = (minute, values) => ({
    from: new Date(from + minute * MINUTE).toISOString(), holder: "job-abc123", reservation: null, owner: "ada",
    measured_ms: 60_000, busy_ms: 60_000, occupied_ms: 60_000, utilization_percent: 90, memory_peak_bytes: 12 * 2 ** 30,
    power_watts: 240, temperature_peak_celsius: 71, processes: [{ uid: 1000, user: "ada", name: "<b>python3</b>" }],
    more_processes: 2, ...values,
  });
  const items = [];
  for (let minute = 360; minute < 720; minute += 1) {
    items.push(row(minute, { utilization_percent: Math.round(60 + 40 * Math.sin(minute / 30)) }));
  }
  const nothing = { measured_ms: 0, busy_ms: 0, utilization_percent: null, memory_peak_bytes: null, processes: [] };
  for (let minute = 720; minute < 780; minute += 1) items.push(row(minute, nothing));
  for (let minute = 780; minute < 1_000; minute += 1) {
    items.push(row(minute, { utilization_percent: 0, busy_ms: 0, memory_peak_bytes: 3 * 2 ** 30 }));
  }
  return { items, known_from: null, cut_at: null, notes: [] };
}

export const minutes = {
  async "a-gpu-page-shows-its-minutes"(browser) {
    const page = await browser.open(0, "/fleet");
    await page.goto(browser.url + (await pathOf(page, browser.job())));
    await page.locator("#minutes-picture svg").waitFor();
    assert.match(await page.locator("#minutes-notes").textContent(), /^Somebody had it for \d/);
    assert.ok((await page.locator("#minutes-words").textContent()).includes(browser.job()), "the last minute is its job's");
    await named(page);
    // Yesterday nobody had it.
    await page.click("#minutes-before");
    await page.locator("#minutes-notes", { hasText: "Somebody had it for 0 min" }).waitFor();
    assert.match(await page.locator("#minutes-words").textContent(), /^23:59.*: nobody had it\.$/);
    await page.click("#minutes-next");
    await page.locator("#minutes-words", { hasText: browser.job() }).waitFor();
    assert.ok(await page.locator("#minutes-next").isDisabled(), "tomorrow has not begun");
  },

  async "a-curve-is-drawn"(browser) {
    for (const [colorScheme, width] of [["light", 390], ["light", 1400], ["dark", 390], ["dark", 1400]]) {
      const viewport = { width, height: width === 390 ? 844 : 860 };
      const page = await browser.open(0, "/fleet", { colorScheme, viewport });
      await page.route("**/minutes/*/*", (route) => route.fulfill({ json: curve(route.request().url()) }));
      await page.goto(browser.url + (await pathOf(page, browser.job())));
      const time = Number(await page.evaluate(() => document.body.dataset.nowMs));
      const yesterday = new Intl.DateTimeFormat("sv", { timeZone: "Europe/Berlin" }).format(time - DAY);
      await page.fill("#minutes-day", yesterday);
      await page.locator("#minutes-notes", { hasText: /for 10\sh\s40\smin.*busy for 6\sh.*Unknown: 1\sh/ }).waitFor();
      assert.equal(await page.locator("#minutes-picture polygon.use").count(), 2);
      assert.equal(await page.locator("#minutes-picture polyline.memory").count(), 2);
      assert.equal(await page.locator("#minutes-picture rect.unknown").count(), 1);
      const words = page.locator("#minutes-words");
      await page.locator("#minutes-at").fill("400");
      assert.match(await words.textContent(), /^06:40.*: job-abc123 of ada, \d+ %, 12\.0 GiB, 240 W, 71 °C, ada <b>python3<\/b>, 2 more\.$/);
      await page.locator("#minutes-at").fill("750");
      assert.match(await words.textContent(), /^12:30.*: job-abc123 of ada, unknown\.$/);
      const box = await page.locator("#minutes-picture").boundingBox();
      await page.locator("#minutes").scrollIntoViewIfNeeded();
      await page.locator("#minutes-picture").hover({ position: { x: box.width * 0.6, y: 40 } });
      assert.match(await words.textContent(), /^14:2\d.*: job-abc123 of ada, 0 %/);
      const wide = await page.evaluate(() => document.documentElement.scrollWidth > innerWidth);
      assert.ok(!wide, `the page is wider than ${width} px`);
      await browser.shoot(page, `minutes-${colorScheme}-${width}`);
    }
  },

  async "a-node-that-cannot-be-asked-is-said"(browser) {
    const page = await browser.open(0, "/fleet");
    const error = { code: "unavailable", message: "titan02 keeps this and cannot be asked." };
    await page.route("**/minutes/*/*", (route) => route.fulfill({ status: 503, json: { error } }));
    await page.goto(browser.url + (await pathOf(page, browser.job())));
    await page.locator("#minutes-notes", { hasText: "titan02 keeps this and cannot be asked." }).waitFor();
    assert.ok(!(await page.locator("#minutes-picture").isVisible()), "nothing is drawn");
  },
};
