// A report: the views of the page over the answers that the file holds.

import { deploymentsView } from "./deployments.js";
import { byId, download, h } from "./dom.js";
import { scalingView } from "./scaling.js";
import { servingSentence, trainingSentence } from "./sentences.js";
import { Workbench } from "./views.js";

const data = JSON.parse(byId("data").textContent);

async function source(short) {
  const found = data.plans[short];
  if (!found) throw new Error(`this report holds no details of ${short}`);
  return found;
}

function chosen() {
  const given = new URLSearchParams(location.hash.slice(1));
  return [given.get("plan"), given.get("compare")].map((short) => (data.plans[short] ? short : null));
}

function link() {
  const pairs = [["plan", bench.plan], ["compare", bench.compared]].filter(([, short]) => short);
  history.replaceState(null, "", `#${pairs.map(([name, short]) => `${name}=${short}`).join("&")}`);
}

/** Deployments of a served model, and the start scripts of the first. */
function serve() {
  let plan = new URLSearchParams(location.hash.slice(1)).get("deployment");
  byId("results").append(deploymentsView(data.serve, () => plan, (other) => {
    plan = other;
    history.replaceState(null, "", `#deployment=${encodeURIComponent(other)}`);
  }));
  byId("results").append(h("section", { class: "config", "aria-label": "Start scripts" }, Object.entries(data.files).map(
    ([name, text]) => h("details", null, h("summary", null, name),
      h("button", { type: "button", onclick: () => download(name, text) }, `Download ${name}`), h("pre", { tabindex: 0 }, text)))));
}

/** Above all of it, for somebody who reads one sentence: the day, the release, the answer. */
function lead() {
  byId("results").append(h("p", { class: "lead" }, data.date ? h("span", { class: "quiet" }, `${data.date}, autoconfig ${data.release}. `) : null,
    data.serve ? servingSentence(data.serve) : trainingSentence(data.search)));
}

const bench = new Workbench(source, link);
lead();
if (data.serve) {
  serve();
} else {
  byId("results").append(bench.element);
  bench.show(data.search, ...chosen());
  window.addEventListener("hashchange", () => bench.show(data.search, ...chosen()));
}
if (data.scaling) {
  byId("results").append(h("section", { "aria-label": "Scaling" }, h("h2", null, "More or fewer GPUs"),
    scalingView(data.scaling, () => {})));
}
if (data.command) {
  byId("results").append(h("p", { class: "quiet" }, `Made on ${data.date} with release ${data.release} of autoconfig by `, h("code", null, data.command)));
}
