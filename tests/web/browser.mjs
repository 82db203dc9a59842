// Opens browsers for people who are logged in, collects their errors, and cleans up after each case.
//
// Used by `page.mjs` and by the cases. One Chromium runs; each person and each case has a context of its own.

import { mkdirSync } from "node:fs";
import { join } from "node:path";

import { chromium } from "playwright-core";

const WAIT_MS = 10_000;

export class Browser {
  static async launch({ url, login, shots, job, offered }) {
    const chrome = await chromium.launch({
      executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
      args: process.getuid?.() === 0 ? ["--no-sandbox"] : [],
    });
    if (shots) mkdirSync(shots, { recursive: true });
    return new Browser(chrome, {
      url: url.replace(/\/$/, ""), logins: login, shots, running: job, offered,
    });
  }

  constructor(chrome, { url, logins, shots, running, offered }) {
    Object.assign(this, { chrome, url, logins, shots, running, offered });
    this.people = [];
    this.contexts = [];
    this.errors = [];
    this.before = new Set();
  }

  /** Logs each person in with their code, and keeps their cookies for the cases. */
  async logIn() {
    for (const login of this.logins) {
      const context = await this.context();
      const page = await this.page(context);
      await page.goto(login);
      await page.click("#login-button");
      await page.locator("#scroller").waitFor();
      if (page.url().includes("#")) throw new Error(`the code is still in the address: ${page.url()}`);
      const name = await page.evaluate(() => document.body.dataset.user);
      this.people.push({ name, state: await context.storageState() });
      if (this.people.length === 1) for (const id of await ids(page)) this.before.add(id);
      for (const id of await own(page)) this.before.add(id);
    }
    await this.closeContexts();
    this.check();
  }

  /** A page of a person; 0 is the first. `options` are those of a context of playwright. */
  async open(person = 0, path = "/", options = {}) {
    if (!this.people[person]) throw new Skipped(`needs ${person + 1} people; give another --login`);
    const page = await this.page(await this.context({ ...options, storageState: this.people[person].state }), options);
    await page.goto(this.url + path);
    return page;
  }

  /** A job of the first person that prints a line each second. */
  job() {
    if (!this.running) throw new Skipped("needs a job that prints; give --job");
    return this.running;
  }

  /** Two reservations that are offered to the second person. */
  offers() {
    if (this.offered.length < 2) throw new Skipped("needs two offers; give --offered twice");
    return this.offered;
  }

  /** A page of somebody who is not logged in. */
  async stranger(path) {
    const page = await this.page(await this.context());
    await page.goto(path.startsWith("http") ? path : this.url + path);
    return page;
  }

  async context(options = {}) {
    const { fixedTime, ...others } = options;
    const context = await this.chrome.newContext({
      ignoreHTTPSErrors: true,
      viewport: { width: 1400, height: 860 },
      timezoneId: "Europe/Berlin",
      ...others,
    });
    context.setDefaultTimeout(WAIT_MS);
    this.contexts.push(context);
    return context;
  }

  async page(context, { fixedTime } = {}) {
    const page = await context.newPage();
    if (fixedTime) await page.clock.setFixedTime(fixedTime);
    page.on("pageerror", (error) => this.errors.push(`error of a script: ${error.message}`));
    page.on("console", (message) => {
      if (message.type() === "error" && !isExpected(message)) this.errors.push(`console: ${message.text()}`);
    });
    await page.addInitScript(() => {
      document.addEventListener("securitypolicyviolation", (event) => {
        console.error(`the content security policy refuses ${event.violatedDirective} ${event.blockedURI}`);
      });
    });
    return page;
  }

  /** Fails if a browser reported an error since the last check. */
  check() {
    const errors = this.errors.splice(0);
    if (errors.length > 0) throw new Error(errors.join("; "));
  }

  async shoot(page, name) {
    if (this.shots) await page.screenshot({ path: join(this.shots, `${name}.png`) });
  }

  async shootAll(name) {
    const pages = this.contexts.flatMap((context) => context.pages());
    for (const [at, page] of pages.entries()) await this.shoot(page, `${name}-${at}`).catch(() => {});
  }

  /** Releases what the people of this test reserved, and closes their pages. */
  async cleanUp() {
    this.errors = [];
    await this.closeContexts();
    for (const person of this.people.keys()) {
      const page = await this.open(person, "/fleet");
      for (const id of await own(page)) {
        if (!this.before.has(id)) await post(page, `/api/v1/reservations/${id}/release`, {});
      }
    }
    await this.closeContexts();
    this.errors = [];
  }

  async closeContexts() {
    for (const context of this.contexts.splice(0)) await context.close().catch(() => {});
  }

  async close() {
    await this.closeContexts();
    await this.chrome.close();
  }
}

/** Why a case cannot be tried here. */
export class Skipped extends Error {
  skipped = true;
}

/** The calendar as the server knows it. */
export function calendar(page) {
  return page.evaluate(async () => (await (await fetch("/api/v1/calendar")).json()).items);
}

/** Sends a change as a page does. */
export function post(page, path, body) {
  return page.evaluate(async ([to, sent]) => {
    const answer = await fetch(to, {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify({ request_id: crypto.randomUUID(), ...sent }),
    });
    return { status: answer.status, body: await answer.json().catch(() => null) };
  }, [path, body]);
}

/** Ids of the reservations in the calendar. */
async function ids(page) {
  const taken = (await calendar(page)).flatMap((gpu) => gpu.taken);
  return new Set(taken.filter((one) => one.by === "reservation").map((one) => one.id));
}

/** Ids of what a person can release: also what waits, which is not in the calendar. */
function own(page) {
  return page.evaluate(async () => {
    const mine = new DOMParser().parseFromString(await (await fetch("/mine")).text(), "text/html");
    return [...mine.querySelectorAll("button[data-release]")].map((button) => button.dataset.release);
  });
}

/**
 * Chromium reports each refusal as an error. A refusal of a booking or of a code is part of a case, and so is a request
 * that the test cuts.
 */
function isExpected(message) {
  const path = URL.canParse(message.location().url) ? new URL(message.location().url).pathname : "";
  const refused = /status of (400|401|403|404|409|412|422|429|503)/.test(message.text());
  if (path.startsWith("/api/") && message.text().includes("net::ERR_FAILED")) return true;
  return path === "/favicon.ico" || (refused && (path.startsWith("/api/") || path === "/login"));
}
