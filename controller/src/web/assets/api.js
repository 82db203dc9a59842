// Sends requests to the controller that served this page, and reads its answers.
//
// Each answer also carries the fleet's time and its age; this module passes both on. The browser sends the login cookie
// by itself.

import * as notices from "./notices.js";
import { now, setNow } from "./times.js";

const TIMEOUT_MS = 15_000;
/** Refusals after which nobody knows whether the change was made. */
const UNCERTAIN = ["unreachable", "no_answer"];
/** Waits between the attempts to send the same booking again. */
const PAUSES_MS = [500, 1500];

/** The controller said no. `code` is a word; `holdings` and `next` exist if GPUs were taken. */
export class Refusal extends Error {
  constructor(status, error) {
    super(error?.message ?? `The controller answered with status ${status}.`);
    this.status = status;
    this.code = error?.code ?? "";
    this.holdings = error?.holdings ?? [];
    this.next = error?.next ?? null;
  }
}

/** No answer came. The controller may or may not have carried out the request. */
export class NoAnswer extends Error {
  constructor() {
    super("The controller does not answer.");
  }
}

/** Reads a document. Returns `null` if it is the one with this ETag, else its body and its own ETag. */
export async function read(path, etag = null) {
  const headers = etag ? { "If-None-Match": etag } : {};
  const answer = await send(path, { headers });
  if (answer.status === 304) return null;
  return { body: await answer.json(), etag: answer.headers.get("ETag") };
}

/** Asks for a change, once. */
export async function change(path, body, signal = null) {
  const headers = { "Content-Type": "application/json" };
  const answer = await send(path, { method: "POST", headers, body: JSON.stringify(body), signal });
  return answer.json();
}

/**
 * Asks for a change, and again if no answer came.
 *
 * `body` has a mark. The fleet carries out requests with the same request_id only once, so asking again is safe.
 */
export async function changeOnce(path, body) {
  for (const pause of PAUSES_MS) {
    try {
      return await change(path, body);
    } catch (error) {
      if (!isUncertain(error)) throw error;
      await new Promise((resolve) => setTimeout(resolve, pause));
    }
  }
  return change(path, body);
}

/** Whether the change may have been made although the request failed. */
export function isUncertain(error) {
  return error instanceof NoAnswer || UNCERTAIN.includes(error.code);
}

/** A new request's id, and the fleet's time when it is first sent. A request that is sent again keeps both. */
export function mark() {
  return { request_id: crypto.randomUUID(), made_at: Math.floor(now()) };
}

async function send(path, options) {
  const limit = AbortSignal.timeout(TIMEOUT_MS);
  const signal = options.signal ? AbortSignal.any([limit, options.signal]) : limit;
  let answer;
  try {
    answer = await fetch(path, { ...options, signal, cache: "no-store" });
  } catch (error) {
    if (options.signal?.aborted) throw error;
    throw new NoAnswer();
  }
  setNow(Number(answer.headers.get("Fleet-Now")));
  sayAge(answer);
  if (answer.ok || answer.status === 304) return answer;
  if (answer.status === 401) notices.loggedOut();
  const body = await answer.json().catch(() => null);
  throw new Refusal(answer.status, body?.error);
}

function sayAge(answer) {
  const stale = answer.headers.get("Fleet-Stale-Ms");
  if (stale === null) {
    if (answer.ok) notices.hide("stale");
  } else {
    const seconds = Math.round(Number(stale) / 1000);
    // An age that nobody knows is sent as the largest number.
    const age = seconds < 1e9 ? `is ${seconds} s old` : "may be old";
    notices.show("stale", `No controller leads right now. What you see ${age}.`);
  }
}
