// Shows the times of a report in the viewer's zone. A report stays as it was when it was loaded.

import { localize } from "./times.js";

localize(document.querySelector("main"));
