// Logs a person in with the code that `fleet web` put behind the # of the address.
//
// The browser does not send that part to the controller, and this module removes it from the address bar at once.
// So the code is in no log and in no history. A click is needed: else a link from somebody would make this browser theirs.

const status = document.getElementById("login-status");
const button = document.getElementById("login-button");
/** Waits between the attempts while no controller leads: the code is still good then. */
const PAUSES_MS = [500, 1500, 3000];
let code = "";

function take() {
  if (!location.hash.slice(1)) return;
  code = location.hash.slice(1);
  history.replaceState(null, "", location.pathname);
  status.textContent = "";
  status.classList.remove("bad");
  button.hidden = false;
  button.disabled = false;
  button.focus();
}

async function login() {
  button.disabled = true;
  status.textContent = "Logging in …";
  try {
    let answer = await show();
    for (const pause of PAUSES_MS) {
      if (answer.status !== 503) break;
      await new Promise((resolve) => setTimeout(resolve, pause));
      answer = await show();
    }
    if (answer.ok) return location.replace("/");
    const body = await answer.json().catch(() => null);
    fail(body?.error?.message ?? `The controller answered with status ${answer.status}.`);
  } catch {
    fail("The controller does not answer. Type `fleet web` again.");
  }
}

function show() {
  return fetch("/login", {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ code }),
    signal: AbortSignal.timeout(15_000),
  });
}

function fail(text) {
  button.hidden = true;
  status.textContent = text;
  status.classList.add("bad");
}

button.addEventListener("click", login);
// A link that is opened in a tab that already shows this page changes only the part behind the #.
addEventListener("hashchange", take);
take();
