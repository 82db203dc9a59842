// Shows bars with a sentence above the page: logged out, old state, no answer.
//
// `api.js`, `stream.js` and the pages call it. A bar has a key, so a second call with the same key replaces it.

/** Shows a bar and returns it. `link` has a text and an address, and may be left out. */
export function show(key, text, link = null) {
  const bars = document.getElementById("notices");
  let bar = bars.querySelector(`[data-key="${key}"]`);
  if (!bar) {
    bar = document.createElement("p");
    bar.className = "notice";
    bar.dataset.key = key;
    bars.append(bar);
  }
  // The same words again are not set again: a screen reader would read them again.
  if (bar.dataset.text === text) return bar;
  bar.dataset.text = text;
  bar.textContent = text;
  if (link) {
    const anchor = document.createElement("a");
    anchor.href = link.href;
    anchor.textContent = link.text;
    bar.append(" ", anchor);
  }
  return bar;
}

/** Shows a bar about something that happened once. It has a button to close it. */
export function report(key, text) {
  hide(key);
  const close = document.createElement("button");
  close.type = "button";
  close.textContent = "Close";
  close.addEventListener("click", () => hide(key));
  show(key, text).append(close);
}

/** Removes a bar. */
export function hide(key) {
  document.getElementById("notices").querySelector(`[data-key="${key}"]`)?.remove();
}

export function loggedOut() {
  show("login", "You are logged out. Type `fleet web` to log in again.");
}
