// Asks a person before something is changed that is hard to undo.
//
// The calendar and `live.js` call it. The question is a native dialog, so Esc answers no.

/** Shows a question and returns whether the person agreed. `yes` is the text of the button that agrees. */
export async function ask({ title, text, yes, danger = false }) {
  return (await open({ title, yes, danger, inside: [element("p", text)] })) === "yes";
}

/**
 * Shows a question that is answered by a text. Returns the text, or null if the person did not agree.
 *
 * The text is required, and has at most `most` letters. `text` is what the field holds at first.
 */
export async function askText({ title, label, text, most, yes }) {
  const name = element("label", label);
  name.htmlFor = "question-text";
  const field = document.createElement("textarea");
  Object.assign(field, { id: "question-text", value: text, maxLength: most, rows: 3, required: true });
  field.addEventListener("input", () => {
    // The fleet takes one line, and blanks alone are no answer.
    if (/[\r\n]/.test(field.value)) field.value = field.value.replace(/[\r\n]+/g, " ");
    field.setCustomValidity(field.value.trim() === "" ? "Type a reason." : "");
  });
  field.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.isComposing) return;
    event.preventDefault();
    field.form.requestSubmit(field.form.querySelector("button[value=yes]"));
  });
  const answer = await open({ title, yes, danger: true, inside: [name, field], focus: field });
  return answer === "yes" ? field.value.trim() : null;
}

/** Returns the value of the button that closed the dialog; Esc has none. */
function open({ title, yes, danger, inside, focus = null }) {
  const dialog = document.createElement("dialog");
  dialog.className = "question";
  dialog.setAttribute("aria-labelledby", "question-title");
  const heading = element("h2", title);
  heading.id = "question-title";
  const form = document.createElement("form");
  form.method = "dialog";
  const no = element("button", "Cancel");
  no.value = "no";
  no.formNoValidate = true;
  const agree = element("button", yes);
  agree.value = "yes";
  agree.className = danger ? "danger" : "main";
  const buttons = document.createElement("div");
  buttons.className = "buttons";
  buttons.append(no, agree);
  form.append(...inside, buttons);
  dialog.append(heading, form);
  document.body.append(dialog);
  const before = document.activeElement;
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => {
      dialog.remove();
      // The page may have been loaded again behind the dialog.
      const back = before?.isConnected ? before : document.getElementById(before?.id);
      back?.focus({ preventScroll: true });
      resolve(dialog.returnValue);
    });
    dialog.showModal();
    (focus ?? agree).focus();
  });
}

/** Asks whether a reservation is to be released. */
export function askRelease({ id, owner, gpus, mine, begun }) {
  const name = mine ? `your reservation ${id}` : `reservation ${id} of ${owner}`;
  const text = begun
    ? `This ends ${name} now. Programs that still use these GPUs may be stopped.`
    : `This cancels ${name}. It has not begun yet.`;
  return ask({
    title: `Release ${gpus}?`,
    text,
    yes: "Release",
    danger: true,
  });
}

function element(name, text) {
  const made = document.createElement(name);
  made.textContent = text;
  return made;
}
