// What the cases of the test of fleet's web page share.
//
// The files of cases call it.

import assert from "node:assert/strict";

import { Skipped, calendar, post } from "./browser.mjs";

export const HOUR = 3_600_000;
export const DAY = 24 * HOUR;

/** A GPU and a day, at least two days ahead, on which nobody has this GPU and the ones below it, `count` in all. */
export async function freeSpot(page, count = 1) {
  const items = await calendar(page);
  const time = Number(await page.evaluate(() => document.body.dataset.nowMs));
  for (let ahead = 2; ahead < 10; ahead += 1) {
    const day = await page.evaluate(([ms, count]) => {
      const date = new Date(ms);
      return new Date(date.getFullYear(), date.getMonth(), date.getDate() + count).getTime();
    }, [time, ahead]);
    const isFree = (gpu) => ["free", "reserved", "running"].includes(gpu.state) && !gpu.taken.some(
      (one) => one.until === null || (Date.parse(one.from ?? 0) < day + DAY && Date.parse(one.until) > day),
    );
    for (const [down, gpu] of items.entries()) {
      const group = items.slice(down, down + count);
      if (group.length < count || !group.every((one) => one.node === gpu.node && isFree(one))) continue;
      const row = items.filter((one) => one.node === gpu.node).indexOf(gpu);
      return { uuid: gpu.uuid, node: gpu.node, name: `${gpu.node}:${gpu.index}`, row, down, day };
    }
  }
  throw new Skipped(`no ${count} GPUs of a node are free for a whole day`);
}

/** The day of the test's own zone, Europe/Berlin, as 2026-11-30. */
export function dayOf(ms) {
  return new Intl.DateTimeFormat("sv", { timeZone: "Europe/Berlin" }).format(ms);
}

export async function openDay(page, spot) {
  await page.goto(`${new URL(page.url()).origin}/?view=day&from=${dayOf(spot.day)}`);
  await page.locator(`.node[data-node="${spot.node}"]`).waitFor();
}

/** The point of the window that is an hour of the spot's day in the spot's row. */
export async function point(page, spot, hour) {
  const track = page.locator(`.node[data-node="${spot.node}"] .track`);
  await track.evaluate((element, [row, part]) => {
    const box = element.getBoundingClientRect();
    const rows = Number(getComputedStyle(element.parentElement).getPropertyValue("--rows"));
    const area = document.getElementById("scroller");
    const middle = area.getBoundingClientRect().top + area.clientHeight / 2;
    area.scrollTop += box.top + (box.height * (row + 0.5)) / rows - middle;
    area.scrollLeft = Math.max(0, box.width * part - area.clientWidth / 2);
  }, [spot.row, hour / 24]);
  return track.evaluate((element, [row, part]) => {
    const box = element.getBoundingClientRect();
    const rows = Number(getComputedStyle(element.parentElement).getPropertyValue("--rows"));
    return { x: box.left + box.width * part, y: box.top + (box.height * (row + 0.5)) / rows };
  }, [spot.row, hour / 24]);
}

/** Drags over the time of the spot from one hour to another. The last half hour is the one before `until`. */
export async function drag(page, spot, from, until, { release = true, from: begin = from + 0.1, rows = 1 } = {}) {
  const start = await point(page, spot, begin);
  await page.mouse.move(start.x, start.y);
  await page.mouse.down();
  const end = await point(page, { ...spot, row: spot.row + rows - 1 }, until - 0.2);
  await page.mouse.move(end.x, end.y, { steps: 6 });
  if (release) await page.mouse.up();
}

/** Books without the page's help. */
export async function book(page, spot, from, until, note) {
  const answer = await post(page, "/api/v1/reservations", {
    gpus: [spot.uuid],
    from: new Date(spot.day + from * HOUR).toISOString(),
    until: new Date(spot.day + until * HOUR).toISOString(),
    note, project: "", with: [], dry_run: false,
  });
  assert.equal(answer.status, 200, JSON.stringify(answer.body));
  return answer.body;
}

/** Asks for approval of three days of a GPU, which is above the limit of this test. */
export async function askFor(page, spot, reason) {
  const answer = await post(page, "/api/v1/reservations", {
    count: 1, node: spot.node, ask: reason, note: "a long note",
    from: new Date(spot.day + 10 * HOUR).toISOString(),
    until: new Date(spot.day + 10 * HOUR + 3 * DAY).toISOString(),
  });
  assert.equal(answer.status, 200, JSON.stringify(answer.body));
  assert.equal(answer.body.state, "requested");
  return answer.body;
}

export function ownBar(page, browser, note) {
  return page.locator(`.bar.mine[aria-label*=", ${browser.people[0].name}, "][aria-label$="${note}"]`);
}

/** Fails if Chromium's accessibility tree has a focusable element without a name. */
export async function named(page) {
  const session = await page.context().newCDPSession(page);
  const { nodes } = await session.send("Accessibility.getFullAXTree");
  const isFocusable = (node) => node.properties?.some((one) => one.name === "focusable" && one.value.value);
  const focusable = nodes.filter((node) => !node.ignored && isFocusable(node));
  assert.ok(focusable.length > 0, "there are focusable elements");
  const nameless = focusable.filter((node) => !node.name?.value);
  assert.deepEqual(nameless.map((node) => node.role?.value), [], `elements without a name on ${page.url()}`);
}

/** Runs in the page: contrasts of the text of a bar with its background, of each colour. */
export function contrasts() {
  const light = (text) => {
    const parts = text.match(/[\d.]+/g).slice(0, 3).map((one) => Number(one) / 255);
    const linear = parts.map((one) => (one <= 0.04045 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4));
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2];
  };
  return Array.from({ length: 12 }, (_, colour) => {
    const bar = document.createElement("div");
    bar.className = `bar reservation colour-${colour}`;
    document.querySelector(".track").append(bar);
    const style = getComputedStyle(bar);
    const [one, other] = [light(style.color), light(style.backgroundColor)].sort((a, b) => b - a);
    bar.remove();
    return (one + 0.05) / (other + 0.05);
  });
}

export function largeFleet(gpus, bars) {
  const begin = Math.floor(Date.now() / HOUR) * HOUR;
  const items = Array.from({ length: gpus }, (_, at) => ({
    uuid: `GPU-${at}`, node: `node${String(Math.floor(at / 8)).padStart(2, "0")}`, index: at % 8, model: "v100",
    state: "free", reason: null, taken: [],
  }));
  for (let at = 0; at < bars; at += 1) {
    const from = begin + Math.floor(at / gpus) * 36 * HOUR;
    items[at % gpus].taken.push({
      by: "reservation", id: `res-${at}`, owner: `user${at % 40}`, note: "a note",
      from: new Date(from).toISOString(), until: new Date(from + (4 + (at % 30)) * HOUR).toISOString(),
    });
  }
  return JSON.stringify({ schema: "fleet.calendar/v1", items });
}
