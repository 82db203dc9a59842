// Draws the week of a fleet as a picture: node picture.mjs ADDRESS-OF-FLEET-WEB FILE

import { chromium } from "playwright-core";

const [address, file] = process.argv.slice(2);
const executablePath = process.env.CHROMIUM ?? "/usr/bin/chromium";
const browser = await chromium.launch({ executablePath, args: ["--no-sandbox"] });
const options = { ignoreHTTPSErrors: true, viewport: { width: 1400, height: 640 }, deviceScaleFactor: 1 };
const page = await (await browser.newContext(options)).newPage();
await page.goto(address);
await page.click("#login-button");
await page.locator(".node").first().waitFor();
await page.goto(`${new URL(address).origin}/?view=week`);
await page.locator(".bar").first().waitFor();
await page.screenshot({ path: file });
await browser.close();
