// Sends the change that a button stands for, and reports how that ended.
//
// `live.js`, `decide.js` and `offer.js` call it.

import { changeOnce, mark } from "./api.js";
import * as notices from "./notices.js";

/**
 * Sends `body` to the address, and again if no answer came. Returns whether the change was made.
 *
 * `key` is that of the notice. `done` is its text if the change was made, or null for none; `failed` makes its text of an
 * error. Nothing is sent while the button's last request is under way.
 */
export async function send(button, path, { body = {}, key, done = null, failed }) {
  // Disabled it would lose the focus.
  if (button.ariaDisabled === "true") return false;
  button.ariaDisabled = "true";
  try {
    await changeOnce(path, { ...mark(), ...body });
    if (done === null) notices.hide(key);
    else notices.report(key, done);
    return true;
  } catch (error) {
    notices.report(key, failed(error));
    return false;
  } finally {
    button.ariaDisabled = "false";
  }
}
