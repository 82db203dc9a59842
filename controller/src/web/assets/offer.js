// Accepts and declines what is offered to a reservation on the waiting list.
//
// `live.js` calls it for the buttons of an offer. The controller decides who may; it refuses anybody else.

import { NoAnswer, changeOnce, mark } from "./api.js";
import * as notices from "./notices.js";
import { ask } from "./question.js";

/** Refusals that say: the offer ended, or the reservation is over. */
const LATE = ["offer_over", "not_changeable", "already_ended"];

/** Accepts the offer of this button. */
export async function accept(button) {
  await send(button, button.dataset.accept, "accept", "accepted");
}

/** Asks, then declines the offer of this button. */
export async function decline(button) {
  const { decline: id, gpus } = button.dataset;
  const agreed = await ask({
    title: `Decline ${gpus}?`,
    text: `${id} keeps its place on the waiting list. The next offer comes in 4 hours at the earliest.`,
    yes: "Decline",
  });
  if (agreed) await send(button, id, "decline", "declined");
}

async function send(button, id, what, done) {
  button.disabled = true;
  try {
    await changeOnce(`/api/v1/reservations/${encodeURIComponent(id)}/${what}`, mark());
    notices.report("offer", `The offer of ${id} is ${done}.`);
  } catch (error) {
    notices.report("offer", problem(error, id, done));
  }
  button.disabled = false;
}

function problem(error, id, done) {
  if (LATE.includes(error.code)) return `Nothing was changed: ${error.message}.`;
  const unsure = error instanceof NoAnswer ? " Check below whether it is still offered." : "";
  return `The offer of ${id} was not ${done}: ${error.message}${unsure}`;
}
