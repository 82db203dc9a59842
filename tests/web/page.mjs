// Tries fleet's web page in Chromium, against a fleet that runs. Prints a line for each case, and fails if one fails.
//
//   npm install
//   node page.mjs --url https://ctrl:7443 --login https://ctrl:7443/login#CODE --login https://ctrl:7443/login#CODE2 \
//     [--shots DIR] [--job ID] [--offered ID --offered ID] [CASE…]
//
// Each --login is what `fleet web` printed for one person. All cases need two different people. The test makes
// reservations some days ahead and releases them. All cases need a node with two neighbouring GPUs that are free then,
// with --job a job of the first person that prints a line each second, and with --offered two reservations that are
// offered to the second person and have not declined an offer (`run.sh` makes all of them).

import { parseArgs } from "node:util";

import { Browser } from "./browser.mjs";
import { cases } from "./cases.mjs";

/** The longest time of a case. */
const LIMIT_MS = 60_000;

const { values, positionals } = parseArgs({
  allowPositionals: true,
  options: {
    url: { type: "string" },
    login: { type: "string", multiple: true, default: [] },
    shots: { type: "string" },
    job: { type: "string" },
    offered: { type: "string", multiple: true, default: [] },
    list: { type: "boolean", default: false },
  },
});
const unknown = positionals.filter((name) => !(name in cases));
if (values.list) {
  for (const name of Object.keys(cases)) console.log(name);
  process.exit(0);
}
if (!values.url || values.login.length === 0 || unknown.length > 0) {
  if (unknown.length > 0) console.error(`no case is named ${unknown.join(", ")}; --list shows all cases`);
  console.error("usage: node page.mjs --url URL --login URL#CODE [--login URL#CODE] [--shots DIR] [--job ID] [--offered ID]… [--list] [CASE…]");
  process.exit(2);
}

const browser = await Browser.launch(values);
let failed = 0;
try {
  // Later cases need people who are logged in, so this is also done if only other cases are asked for.
  await browser.logIn();
  const names = positionals.length > 0 ? positionals : Object.keys(cases);
  for (const name of names) {
    const begun = performance.now();
    let outcome = "ok";
    try {
      await limited(cases[name](browser), name);
      browser.check();
    } catch (error) {
      if (error.skipped) outcome = `skipped: ${error.message}`;
      else {
        failed += 1;
        outcome = `FAILED: ${error.message}`;
        await browser.shootAll(`failed-${name}`);
      }
    }
    await browser.cleanUp();
    console.log(`${name}: ${outcome} (${Math.round(performance.now() - begun)} ms)`);
  }
} catch (error) {
  failed += 1;
  console.log(`FAILED: ${error.message}`);
} finally {
  await browser.close();
}
process.exit(failed > 0 ? 1 : 0);

function limited(work, name) {
  let timer;
  const limit = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error(`${name} took longer than ${LIMIT_MS / 1000} s`)), LIMIT_MS);
  });
  return Promise.race([work, limit]).finally(() => clearTimeout(timer));
}
