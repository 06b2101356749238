// Document: search by source and index, key or text; every step with it.

import { report } from "../app.js";
import { cell, count, get, goTo, h, hashOf, parseCount, say, table } from "../lib.js";
import { showValue } from "./values.js";

export function open({ content, overview, query }) {
  let abort = new AbortController(), searching = null;
  const source = h("input", { type: "text", id: "source", autocomplete: "off", size: 18 });
  source.setAttribute("list", "names");
  const index = h("input", { type: "text", inputMode: "numeric", id: "index", size: 10 });
  const words = h("input", { type: "search", id: "words", size: 24 });
  const by = h("select", { id: "by" }, h("option", { value: "text" }, "text"), h("option", { value: "key" }, "key"));
  const hits = h("div"), found = h("div", { className: "split" });
  content.append(
    h("datalist", { id: "names" }, overview.sources.map((s) => h("option", { value: s.name }))),
    h("form", { className: "bar", onsubmit: (event) => {
      event.preventDefault();
      const number = parseCount(index.value);
      if (number === null || !source.value) return say("Give a source and an index");
      goTo("document", { source: source.value.trim(), index: number });
    } },
      h("label", { htmlFor: "source" }, "Source"), source, h("label", { htmlFor: "index" }, "index"), index,
      h("button", { type: "submit" }, "Show")),
    h("form", { className: "bar", onsubmit: (event) => { event.preventDefault(); search().catch(report); } },
      h("label", { htmlFor: "words" }, "or search"), words, h("label", { htmlFor: "by" }, "by"), by,
      h("button", { type: "submit" }, "Search"),
      h("button", { type: "button", onclick: () => searching?.abort() }, "Stop")),
    hits, found);

  async function search() {
    searching?.abort();
    searching = new AbortController();
    const { signal } = searching, rows = [], status = h("p", { className: "dim", role: "status" });
    const holder = h("div");
    hits.replaceChildren(h("h2", {}, "Search"), status, holder);
    let next = [0, 0], read = 0;
    const draw = () => holder.replaceChildren(rows.length ? table([{ title: "document" }, { title: "text" }], rows, { label: "Found documents" }) : "");
    try {
      while (next !== null && rows.length < 200) {
        const part = await get("search", { text: words.value, by: by.value, source: source.value.trim(), number: next[0], row: next[1] }, signal);
        read += part.read;
        for (const hit of part.hits) {
          rows.push(h("tr", {}, h("th", { scope: "row" }, h("a", { href: hashOf("document", { source: hit.source, index: hit.index }) }, h("bdi", {}, `${hit.source}[${count(hit.index)}]`))), cell(h("bdi", {}, hit.snippet))));
        }
        next = part.next;
        status.textContent = `${count(rows.length)} found in ${count(read)} rows${next === null ? "" : ` ... (in ${part.source})`}`;
        if (part.hits.length) draw();
      }
      status.textContent = `${count(rows.length)} found in ${count(read)} rows${next === null ? "" : "; the search stopped there"}`;
    } catch (error) {
      if (error.name !== "AbortError") throw error;
      status.textContent += " Stopped.";
    }
  }
  async function update(q) {
    abort.abort();
    abort = new AbortController();
    const { signal } = abort;
    const name = q.get("source"), number = q.get("index");
    if (name === null || number === null) {
      found.replaceChildren(h("p", { className: "dim" }, "Give a source and an index, or search all sources. A key is a column such as id, key or url; COLUMN=VALUE names another one."));
      return;
    }
    source.value = name;
    index.value = number;
    const views = h("div", {}), body = h("div", { className: "detail" });
    found.replaceChildren(views, body);
    const sample = { source: name, index: Number(number) };
    const load = async (start) => {
      const value = await get("sample", { ...sample, start }, signal);
      body.replaceChildren(h("h2", {}, "Contents"), value.key === null ? "" : h("p", {}, h("code", {}, h("bdi", {}, value.key))), showValue(value.value, sample, [], (n) => load(n).catch(report)));
    };
    await load(0);
    await listViews(sample, views, signal);
  }
  async function listViews(sample, holder, signal) {
    const rows = [], heading = h("h2", {}, "Steps"), status = h("p", { className: "dim", role: "status" }), body = h("div");
    const button = h("button", { type: "button", hidden: true }, "More steps");
    holder.replaceChildren(heading, status, body, button);
    let next = 0, passes = new Set(), isPacked = false;
    const load = async (limit) => {
      button.hidden = true;
      while (next !== null && rows.length < limit) {
        const part = await get("views", { ...sample, first: next }, signal);
        for (const view of part.views) {
          passes.add(view.epoch);
          isPacked ||= view.stop !== undefined;
          const when = part.position === null ? "" : view.step < part.position ? "seen" : "will be seen";
          rows.push(h("tr", {},
            h("td", { className: "number" }, h("a", { href: hashOf("step", { step: view.step }) }, count(view.step))),
            cell(count(view.epoch), "number"), cell(count(view.rank), "number wide"), cell(count(view.row), "number wide"),
            isPacked ? cell(`${count(view.start)} to ${count(view.stop)}`, "number") : null,
            cell([when, view.masked ? "masked" : ""].filter(Boolean).join(", "))));
        }
        next = part.next;
        const end = next ?? part.stop;
        status.textContent = `${count(rows.length)} time${rows.length === 1 ? "" : "s"}, in ${count(passes.size)} pass${passes.size === 1 ? "" : "es"}, up to ${part.unit} ${count(end)} of ${count(part.stop)}`;
        const columns = [{ title: part.unit, className: "number" }, { title: "pass", className: "number" }, { title: "rank", className: "number wide" }, { title: "row", className: "number wide" }, ...(isPacked ? [{ title: "its tokens", className: "number" }] : []), { title: part.position === null ? "" : "when" }];
        body.replaceChildren(rows.length ? table(columns, rows, { label: "Steps with the document" }) : next === null ? h("p", {}, "Never in this run.") : "");
      }
      button.hidden = next === null;
    };
    button.onclick = () => load(rows.length + 200).catch(report);
    await load(100);
  }
  return { ready: update(query), update: (q) => update(q).catch(report), close() { abort.abort(); searching?.abort(); } };
}
