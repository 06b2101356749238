// Step: every sample by rank and row, and the contents of one of them.

import { report } from "../app.js";
import { colorOf, count, get, goTo, h, hashOf, parseCount, say } from "../lib.js";
import { showTokens, showValue } from "./values.js";

export function open({ content, overview, query }) {
  let abort = new AbortController(), state = null, shown = null, answer = null;
  const input = h("input", { type: "text", inputMode: "numeric", size: 14, id: "step" });
  const heading = h("h2", {}), list = h("div", { className: "rows" }), detail = h("div", { className: "detail", "aria-live": "polite" });
  const more = h("p", {});
  const show = (changes) => goTo("step", { ...state, ...changes });
  const move = (by) => {
    const step = Math.max(0, state.step + by);
    show({ step: overview.ends ? Math.min(step, overview.steps - 1) : step, start: 0, at: null });
  };
  content.append(
    h("form", { className: "bar", onsubmit: (event) => {
      event.preventDefault();
      const step = parseCount(input.value);
      if (step === null) return say("Give a step, a whole number from 0 on");
      show({ step, start: 0, at: null });
    } },
      h("label", { htmlFor: "step" }, overview.unit === "step" ? "Step" : "Sample"), input, h("button", { type: "submit" }, "Show"),
      h("button", { type: "button", onclick: () => move(-1), title: "Left arrow" }, "Previous"),
      h("button", { type: "button", onclick: () => move(1), title: "Right arrow" }, "Next")),
    heading, h("div", { className: "split" }, h("div", {}, list, more), detail));

  function drawList() {
    const ranks = Map.groupBy ? Map.groupBy(answer.samples, (s) => s.rank) : groupBy(answer.samples, (s) => s.rank);
    const several = overview.ranks > 1 || ranks.size > 1;
    const blocks = [];
    let number = answer.start;
    for (const [rank, samples] of ranks) {
      if (several) blocks.push(h("h3", {}, `Rank ${count(rank)}`));
      const rows = groupBy(samples, (s) => s.row);
      for (const [row, parts] of rows) {
        const buttons = parts.map((sample) => drawSample(sample, number++, parts.length > 1 || answer.packed));
        blocks.push(h("div", { className: answer.packed ? "row packed" : "row" },
          h("span", { className: "rownumber" }, `row ${count(row)}`),
          h("div", { className: answer.packed ? "segments" : "single" }, buttons)));
      }
    }
    list.replaceChildren(...blocks);
    const end = answer.start + answer.samples.length;
    more.replaceChildren(...(answer.total > answer.samples.length ? [
      `samples ${count(answer.start)} to ${count(end)} of ${count(answer.total)} `,
      answer.start ? h("button", { type: "button", onclick: () => show({ start: Math.max(0, answer.start - 256), at: null }) }, "Previous samples") : "",
      end < answer.total ? h("button", { type: "button", onclick: () => show({ start: end, at: null }) }, "Next samples") : "",
    ] : []));
  }
  function drawSample(sample, number, isSegment) {
    const length = sample.stop === undefined ? null : sample.stop - sample.start;
    const where = sample.file ? ` ${sample.file}, row ${count(sample.row_in_file)}` : "";
    const label = `${sample.source}[${count(sample.index)}]${sample.epoch ? ` pass ${count(sample.epoch)}` : ""}${length === null ? "" : `, tokens ${count(sample.start)} to ${count(sample.stop)}`}${sample.masked ? ", masked" : ""}${where}`;
    const isOpen = state.at === number;
    return h("button", {
      type: "button", className: `sample${isSegment ? " segment" : ""}${sample.masked ? " masked" : ""}`, title: label,
      "aria-pressed": String(isOpen),
      style: { "--color": colorOf(sample.source), ...(isSegment && length !== null ? { "flex-grow": String(Math.max(length, 1)) } : {}) },
      onclick: () => show({ at: number }),
    },
      h("span", { className: "swatch", style: { background: colorOf(sample.source) } }),
      h("bdi", { className: "name" }, `${sample.source}[${count(sample.index)}]`),
      isSegment ? null : h("span", { className: "dim" }, `pass ${count(sample.epoch)}`),
      isSegment ? null : h("span", { className: "dim file" }, where));
  }
  async function drawDetail(signal) {
    const sample = state.at === null ? null : answer.samples[state.at - answer.start];
    if (!sample) {
      detail.replaceChildren(h("p", { className: "dim" }, "Select a sample to read it. Arrow keys left and right change the step, up and down the sample."));
      return;
    }
    const body = h("div", {}, h("p", { className: "dim" }, "Reading ...")), tokens = h("div", {});
    const facts = [
      ["source", h("bdi", {}, sample.source)], ["index", count(sample.index)], ["pass", count(sample.epoch)],
      ["rank", count(sample.rank)], ["row", count(sample.row)],
      sample.stop === undefined ? null : ["its tokens in the row", `${count(sample.start)} to ${count(sample.stop)}`],
      sample.file ? ["file", h("bdi", {}, `${sample.file}, row ${count(sample.row_in_file)}`)] : null,
    ].filter(Boolean);
    const key = h("span", {});
    detail.replaceChildren(
      h("h2", {}, h("bdi", {}, `${sample.source}[${count(sample.index)}]`)), key,
      h("dl", { className: "facts" }, facts.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value)))),
      h("p", {}, h("a", { href: hashOf("document", { source: sample.source, index: sample.index }) }, "All steps with this document")),
      body, tokens);
    const load = async (start) => {
      try {
        const value = await get("sample", { source: sample.source, index: sample.index, start }, signal);
        if (value.key !== null) key.replaceChildren(h("code", {}, h("bdi", {}, value.key)));
        body.replaceChildren(showValue(value.value, sample, [], (next) => load(next)));
      } catch (error) {
        if (error.name !== "AbortError") body.replaceChildren(h("p", { className: "error" }, error.message));
      }
    };
    await load(0);
    try {
      const found = await get("tokens", { step: state.step, rank: sample.rank, row: sample.row }, signal);
      if (found.documents.length) tokens.replaceChildren(h("h2", {}, "Tokens of the row"), showTokens(found));
    } catch (error) {
      if (error.name !== "AbortError") tokens.replaceChildren(h("p", { className: "error" }, `Tokens: ${error.message}`));
    }
  }
  async function update(q) {
    abort.abort();
    abort = new AbortController();
    const at = q.get("at");
    state = { step: Number(q.get("step") ?? overview.position ?? 0), start: Number(q.get("start") ?? 0), at: at === null ? null : Number(at) };
    input.value = count(state.step);
    const { signal } = abort, name = `${state.step}:${state.start}`;
    if (shown !== name) {
      answer = await get("step", { step: state.step, start: state.start }, signal);
      shown = name;
    }
    for (const error of content.querySelectorAll(".error")) error.remove();
    heading.textContent = `${overview.unit === "step" ? "Step" : "Sample"} ${count(answer.step)}: ${count(answer.total)} ${answer.packed ? "documents and parts" : "samples"}` +
      (overview.position === null ? "" : answer.is_delivered ? ", delivered" : ", not delivered yet");
    drawList();
    await drawDetail(signal);
  }
  return {
    ready: update(query),
    update: (q) => update(q).catch((error) => { shown = null; report(error); }),
    close: () => abort.abort(),
    onKey(key) {
      if (key === "ArrowRight") move(1);
      else if (key === "ArrowLeft") move(-1);
      else if (key === "ArrowDown" || key === "ArrowUp") {
        if (!answer?.samples.length) return false;
        const last = answer.start + answer.samples.length - 1;
        const next = state.at === null ? answer.start : state.at + (key === "ArrowDown" ? 1 : -1);
        show({ at: Math.max(answer.start, Math.min(next, last)) });
      } else return false;
      return true;
    },
  };
}

export function groupBy(items, key) {
  const groups = new Map();
  for (const item of items) {
    const name = key(item);
    if (!groups.has(name)) groups.set(name, []);
    groups.get(name).push(item);
  }
  return groups;
}
