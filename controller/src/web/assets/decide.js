// Approves and denies requests above a limit.
//
// `live.js` calls it for the buttons of a request. The controller decides who may; it refuses anybody else.

import { isUncertain } from "./api.js";
import { ask, askText } from "./question.js";
import { send } from "./send.js";

/** The longest text that the fleet takes, in bytes. Letters beyond ASCII have several. */
const REASON_MAX = 512;
/** Refusals that say: it is decided already, or over. */
const LATE = ["not_changeable", "already_ended"];
/** Reasons that were typed and not sent, by request: a broken connection must not cost a person their words. */
const drafts = new Map();

/** Asks, then approves the request of this button. */
export async function approve(button) {
  const { approve: id, owner, wish } = button.dataset;
  const agreed = await ask({
    title: `Approve ${wish} for ${owner}?`,
    text: `Limits do not count for ${id} then. If no GPUs are free in time, it waits for them.`,
    yes: "Approve",
  });
  if (agreed) await decide(button, id, "approve", {}, "approved");
}

/** Asks why, then denies the request of this button. */
export async function deny(button) {
  const { deny: id, owner, wish } = button.dataset;
  const reason = await askText({
    title: `Deny ${wish} for ${owner}?`,
    label: `Reason, for the owner (${owner})`,
    text: drafts.get(id) ?? "",
    most: REASON_MAX,
    yes: "Deny",
  });
  if (reason === null) return;
  drafts.set(id, reason);
  await decide(button, id, "deny", { reason }, "denied");
}

async function decide(button, id, what, body, done) {
  const path = `/api/v1/reservations/${encodeURIComponent(id)}/${what}`;
  const failed = (error) => problem(error, id, done);
  const isDone = await send(button, path, { body, key: "decide", done: `${id} is ${done}.`, failed });
  if (isDone) drafts.delete(id);
}

function problem(error, id, done) {
  if (LATE.includes(error.code)) {
    return `Nothing was changed: ${id} was decided already, or it is over. ${error.message}.`;
  }
  if (isUncertain(error)) {
    return `It is not known whether ${id} was ${done}. Check below whether it still waits.`;
  }
  return `${id} was not ${done}: ${error.message}`;
}
