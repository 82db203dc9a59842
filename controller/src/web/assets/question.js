// Asks a person before something is changed that is hard to undo.
//
// The calendar and `live.js` call it. The question is a native dialog, so Esc answers no.

/** Shows a question and returns whether the person agreed. `yes` is the text of the button that agrees. */
export function ask({ title, text, yes, danger = false }) {
  const dialog = document.createElement("dialog");
  dialog.className = "question";
  dialog.setAttribute("aria-labelledby", "question-title");
  const heading = element("h2", title);
  heading.id = "question-title";
  const form = document.createElement("form");
  form.method = "dialog";
  form.className = "buttons";
  const no = element("button", "Cancel");
  no.value = "no";
  const agree = element("button", yes);
  agree.value = "yes";
  agree.className = danger ? "danger" : "main";
  form.append(no, agree);
  dialog.append(heading, element("p", text), form);
  document.body.append(dialog);
  const before = document.activeElement;
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => {
      dialog.remove();
      if (before?.isConnected) before.focus({ preventScroll: true });
      resolve(dialog.returnValue === "yes");
    });
    dialog.showModal();
    agree.focus();
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
