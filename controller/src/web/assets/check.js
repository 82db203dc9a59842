// Asks the fleet whether a booking would work, without making it, and says in words why not.
//
// The drag in `selection.js` and the dialog in `booking.js` each own a check.

import { NoAnswer, change, mark } from "./api.js";
import { gpuList } from "./bars.js";
import { instant, moment } from "./times.js";

const PAUSE_MS = 200;

/** Asks after a short pause, and only for the newest booking. */
export class Check {
  /** `result` is called with `{ ok, text, next, code }`; `ok` is null while nobody knows, `code` is that of a refusal. */
  constructor(result) {
    this.result = result;
    this.timer = 0;
    this.asked = null;
  }

  /** `booking` is the body of the request, without its id. */
  ask(booking) {
    this.stop();
    const asked = new AbortController();
    this.asked = asked;
    this.timer = setTimeout(async () => {
      const found = await tried(booking, asked.signal);
      if (this.asked === asked) this.result(found);
    }, PAUSE_MS);
  }

  stop() {
    clearTimeout(this.timer);
    this.asked?.abort();
    this.asked = null;
  }
}

async function tried(booking, signal) {
  try {
    const body = { ...booking, ...mark(), dry_run: true };
    const made = await change("/api/v1/reservations", body, signal);
    const names = made.gpus?.map((gpu) => `${gpu.node}:${gpu.index}`) ?? [];
    return { ok: true, text: names.length > 0 ? `${gpuList(names)}: free at that time.` : "Free at that time." };
  } catch (error) {
    if (error instanceof NoAnswer) return { ok: null, text: error.message };
    if (signal.aborted) return { ok: null, text: "" };
    return { ok: false, text: refused(error), next: nextOf(error), code: error.code };
  }
}

/** Why a booking was refused: who has the GPUs until when, and the next free time. */
export function refused(error) {
  if (!error.holdings?.length) return [error.message, nextText(nextOf(error))].filter(Boolean).join(" ");
  // The same holder of several GPUs is one sentence.
  const holders = new Map();
  for (const one of error.holdings) {
    const key = `${one.owner} ${one.until}`;
    if (!holders.has(key)) holders.set(key, { ...one, names: [] });
    holders.get(key).names.push(`${one.node}:${one.index}`);
  }
  const sentences = [...holders.values()].map((one) => held(one.owner, one.names, instant(one.until)));
  return [...sentences, nextText(nextOf(error))].filter(Boolean).join(" ");
}

/** ada has titan01:3 until Thu 3 Dec 18:30. */
export function held(owner, names, until) {
  const end = until === null ? "; the end is not known" : ` until ${moment(until)}`;
  return `${owner || "Somebody"} has ${gpuList(names)}${end}.`;
}

/** The next time at which the same booking would fit; null if none is known. */
function nextOf(error) {
  const from = instant(error.next?.starts_at);
  return from === null ? null : { from, node: error.next.node, uuids: error.next.gpus };
}

function nextText(next) {
  return next ? `Next free time: ${moment(next.from)} on ${next.node}.` : "";
}
