// Shell of the page: tabs, routing, keyboard.

import { colorOf, count, get, h, hashOf, readHash, say } from "./lib.js";
import * as timeline from "./views/timeline.js";
import * as step from "./views/step.js";
import * as documents from "./views/document.js";
import * as compare from "./views/compare.js";
import * as whatIf from "./views/what_if.js";
import * as live from "./views/live.js";

const views = { timeline, step, document: documents, compare, "what-if": whatIf, live };
const titles = { timeline: "Timeline", step: "Step", document: "Document", compare: "Compare", "what-if": "What if", live: "Live" };
const content = document.getElementById("content");
let overview = null, present = null, presentName = null;

function showError(error) {
  content.append(h("p", { className: "error", role: "alert" }, error.message));
}

function showTabs(name) {
  document.getElementById("tabs").replaceChildren(...Object.entries(titles).map(([key, title]) =>
    h("a", { href: hashOf(key, {}), "aria-current": key === name ? "page" : null }, title)));
}

async function route() {
  const { view, query } = readHash();
  const name = view in views ? view : "timeline";
  if (name === presentName && present?.update) return present.update(query);
  present?.close?.();
  present = null;
  presentName = name;
  showTabs(name);
  document.title = `${titles[name]}: ${overview.title}`;
  content.replaceChildren();
  say("");
  try {
    present = views[name].open({ content, overview, query });
    await present.ready;
  } catch (error) {
    showError(error);
  }
}

export function report(error) {
  if (error.name === "AbortError") return;
  for (const old of content.querySelectorAll(".error")) old.remove();
  showError(error);
}

document.addEventListener("keydown", (event) => {
  const isTyping = /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName);
  if (isTyping || event.ctrlKey || event.metaKey || event.altKey) return;
  const number = Number(event.key);
  const names = Object.keys(views);
  if (number >= 1 && number <= names.length) location.hash = hashOf(names[number - 1], {});
  else if (event.key === "/") { event.preventDefault(); content.querySelector("input[type=search]")?.focus(); }
  else if (present?.onKey?.(event.key)) event.preventDefault();
});

window.addEventListener("hashchange", () => route().catch(report));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { presentName = null; route().catch(report); });

try {
  overview = await get("overview");
  document.getElementById("title").textContent = overview.title;
  for (const group of overview.groups) colorOf(group);
  if (overview.sources.length <= 12) for (const source of overview.sources) colorOf(source.name);
  const facts = [
    `${count(overview.steps)} ${overview.unit}s`,
    `${count(overview.sources.length)} source${overview.sources.length === 1 ? "" : "s"}`,
    overview.position === null ? null : `state before ${overview.unit} ${count(overview.position)}`,
    `shares of ${overview.by}`,
  ];
  document.getElementById("facts").textContent = facts.filter(Boolean).join(" · ");
  if (overview.note) document.querySelector("header").after(h("p", { className: "note" }, overview.note));
  await route();
} catch (error) {
  content.replaceChildren();
  showError(error);
}
