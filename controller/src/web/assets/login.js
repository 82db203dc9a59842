// Logs a person in with the code that `fleet web` put behind the # of the address.
//
// The browser does not send that part to the controller, and this module removes it from the address bar at once.
// So the code is in no log and in no history.

const status = document.getElementById("login-status");

async function login() {
  const code = location.hash.slice(1);
  if (!code) return;
  history.replaceState(null, "", location.pathname);
  status.textContent = "Logging in …";
  try {
    const answer = await fetch("/login", {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify({ code }),
      signal: AbortSignal.timeout(15_000),
    });
    if (answer.ok) return location.replace("/");
    const body = await answer.json().catch(() => null);
    fail(body?.error?.message ?? `The controller answered with status ${answer.status}.`);
  } catch {
    fail("The controller does not answer. Type `fleet web` again.");
  }
}

function fail(text) {
  status.textContent = text;
  status.classList.add("bad");
}

// A link that is opened in a tab that already shows this page changes only the part behind the #.
addEventListener("hashchange", login);
login();
