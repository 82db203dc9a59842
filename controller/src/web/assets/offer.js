// Accepts and declines what is offered to a reservation on the waiting list.
//
// `live.js` calls it for the buttons of an offer. The controller decides who may; it refuses anybody else.

import { isUncertain } from "./api.js";
import { ask } from "./question.js";
import { send } from "./send.js";

/** Refusals that say: the offer ended, or the reservation is over. */
const LATE = ["offer_over", "not_changeable", "already_ended"];

/** Accepts the offer of this button. */
export async function accept(button) {
  await answer(button, button.dataset.accept, "accept", "accepted");
}

/** Asks, then declines the offer of this button. */
export async function decline(button) {
  const { decline: id, gpus, last } = button.dataset;
  const text = last === "true"
    ? `This is the last offer for ${id}. If you decline it, the reservation is over.`
    : `${id} keeps its place on the waiting list. The next offer comes in 4 hours at the earliest.`;
  const agreed = await ask({ title: `Decline ${gpus}?`, text, yes: "Decline", danger: last === "true" });
  if (agreed) await answer(button, id, "decline", "declined");
}

async function answer(button, id, what, done) {
  const path = `/api/v1/reservations/${encodeURIComponent(id)}/${what}`;
  const failed = (error) => problem(error, id, done);
  await send(button, path, { key: "offer", done: `The offer of ${id} is ${done}.`, failed });
}

function problem(error, id, done) {
  if (LATE.includes(error.code)) return `Nothing was changed: ${error.message}.`;
  if (isUncertain(error)) {
    return `It is not known whether the offer of ${id} was ${done}. Check below whether it is still offered.`;
  }
  return `The offer of ${id} was not ${done}: ${error.message}`;
}
