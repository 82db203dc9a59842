// Shows the last lines that a job printed, and follows them.
//
// Only the page of a job that the person may look into loads it. The controller asks the job's node each time, so this
// asks for nothing while nobody sees the page, and not for ever.

import { read } from "./api.js";

/** Between an answer and the next question. */
const FOLLOW_EVERY_MS = 3_000;
/** A window that was left open does not ask a node for longer. */
const FOLLOW_MAX_MS = 30 * 60_000;
/** The distance from the end in pixels within which a person reads the end. */
const END_PX = 30;

const part = (name) => document.getElementById(`output-${name}`);
const path = `/api/v1/jobs/${encodeURIComponent(document.getElementById("output").dataset.job)}/output`;
let begun = performance.now();
let loading = false;
let timer = 0;

async function load() {
  clearTimeout(timer);
  if (loading) return;
  loading = true;
  try {
    show((await read(path)).body);
  } catch (error) {
    note(error.message);
  }
  loading = false;
  if (part("follow").checked && performance.now() - begun > FOLLOW_MAX_MS) {
    part("follow").checked = false;
    note(`Following ended after ${FOLLOW_MAX_MS / 60_000} minutes.`);
  }
  follow();
}

function follow() {
  clearTimeout(timer);
  if (part("follow").checked && !document.hidden) timer = setTimeout(load, FOLLOW_EVERY_MS);
}

/** The same words again are not set again: a screen reader would read them each time. */
function note(text) {
  if (part("notes").textContent !== text) part("notes").textContent = text;
}

function show(output) {
  part("state").textContent = output.attempt > 1 ? `${output.state}, attempt ${output.attempt}` : output.state;
  const notes = [...output.notes];
  if (output.is_cut) notes.unshift("Only the end is shown.");
  note(notes.join(" "));
  if (output.is_over) part("follow").checked = false;
  part("follow").disabled = output.is_over;
  const text = part("text");
  const selection = getSelection();
  const isSelecting = !selection.isCollapsed && text.contains(selection.anchorNode);
  const isLess = !output.is_complete && !text.hidden;
  if (text.textContent === output.text || isSelecting || isLess) return;
  const isAtEnd = text.hidden || text.scrollHeight - text.scrollTop - text.clientHeight < END_PX;
  text.textContent = output.text;
  text.hidden = output.text === "";
  if (isAtEnd) text.scrollTop = text.scrollHeight;
}

part("load").addEventListener("click", load);
part("follow").addEventListener("change", () => {
  begun = performance.now();
  if (part("follow").checked) load();
  else clearTimeout(timer);
});
document.addEventListener("visibilitychange", () => {
  if (document.hidden) clearTimeout(timer);
  else if (part("follow").checked) load();
});
load();
