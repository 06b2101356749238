// Timeline: shares over the run, marks, zoom, groups and pinned sources.

import { report } from "../app.js";
import { drawShares } from "../charts.js";
import { cell, colorOf, count, fixed, get, goTo, h, hashOf, parseCount, percent, say, table } from "../lib.js";

/** Request a timeline until it is complete; call `show` with each part. */
export async function fetchTimeline(parameters, show, signal) {
  for (;;) {
    const part = await get("timeline", parameters, signal);
    show(part);
    if (part.complete) return part;
  }
}

const MARK_NAMES = { stage: "stage", repeat: "first repeat", end: "used up", state: "state", change: "change" };
const MAX_MARK_ROWS = 12;

export function open({ content, overview, query }) {
  let abort = new AbortController(), chart = null, sources = null, latest = null, state = null, allMarks = false;
  const holder = h("div", { className: "chart", tabIndex: 0, role: "img", "aria-label": "Shares of the sources over the run" });
  const legend = h("div"), markList = h("div"), range = h("p", { className: "dim", id: "range" });
  const first = h("input", { type: "text", inputMode: "numeric", size: 12, id: "first" });
  const last = h("input", { type: "text", inputMode: "numeric", size: 12, id: "stop" });
  const search = h("input", { type: "search", id: "pin", placeholder: "a source to show", autocomplete: "off" });
  search.setAttribute("list", "names");
  const fold = h("input", { type: "checkbox", id: "fold" });

  const read = (q) => ({
    first: Number(q.get("first") ?? 0),
    stop: Number(q.get("stop") ?? overview.steps),
    pin: q.getAll("pin"),
    groups: q.get("groups") ?? (overview.groups.length && overview.sources.length > 12 ? "1" : "0"),
    unfold: q.getAll("unfold"),
  });
  const show = (changes, replace = false) => goTo("timeline", { ...state, ...changes }, replace);
  const zoom = (factor) => {
    const middle = (state.first + state.stop) / 2, half = Math.max(1, ((state.stop - state.first) * factor) / 2);
    const begin = Math.max(0, Math.floor(middle - half));
    show({ first: begin, stop: Math.min(overview.ends ? overview.steps : Infinity, Math.max(begin + 1, Math.ceil(middle + half))) });
  };
  const pan = (part) => {
    const length = state.stop - state.first, shift = Math.max(1, Math.round(length * Math.abs(part))) * Math.sign(part);
    const begin = Math.max(0, Math.min(state.first + shift, overview.ends ? overview.steps - length : Infinity));
    show({ first: begin, stop: begin + length });
  };
  const applyRange = () => {
    const a = parseCount(first.value), b = parseCount(last.value);
    if (a === null || b === null || b <= a) return say("Give two steps, the first one smaller");
    show({ first: a, stop: b });
  };

  content.append(
    h("form", { className: "bar", onsubmit: (event) => { event.preventDefault(); applyRange(); } },
      h("label", { htmlFor: "first" }, "Steps"), first, h("label", { htmlFor: "stop" }, "to"), last,
      h("button", { type: "submit" }, "Show"),
      h("button", { type: "button", onclick: () => zoom(0.5), title: "Zoom in (+)" }, "Zoom in"),
      h("button", { type: "button", onclick: () => zoom(2), title: "Zoom out (-)" }, "Zoom out"),
      h("button", { type: "button", onclick: () => show({ first: 0, stop: overview.steps }) }, "Whole run")),
    h("form", { className: "bar", onsubmit: (event) => {
      event.preventDefault();
      const name = search.value.trim();
      if (!overview.sources.some((s) => s.name === name)) return say(`No source is named ${name}`);
      search.value = "";
      show({ pin: [...new Set([...state.pin, name])] });
    } },
      h("label", { htmlFor: "pin" }, "Show source"), search,
      h("datalist", { id: "names" }, overview.sources.map((s) => h("option", { value: s.name }))),
      h("button", { type: "submit" }, "Add"),
      overview.groups.length ? h("label", {}, fold, " fold groups") : null),
    holder, range, legend, markList);
  fold.addEventListener("change", () => show({ groups: fold.checked ? "1" : "0" }));

  const rowOf = (name) => sources?.sources.find((s) => s.source === name);
  function drawLegend(timeline, at) {
    const details = (name) => {
      const row = rowOf(name);
      if (!row) return [cell("", "wide"), cell("", "wide"), cell("", "wide"), cell("", "wide")];
      return [
        cell(fixed(row.epochs), "number wide"),
        cell(row.first_repeat === null ? "" : stepLink(row.first_repeat), "number wide"),
        cell(row.ends === null ? "" : stepLink(row.ends), "number wide"),
        cell(row.remarks.join("; "), "wide remark"),
      ];
    };
    const mean = (values) => {
      let sum = 0, weight = 0;
      values.forEach((v, i) => { const w = timeline.steps[i + 1] - timeline.steps[i]; sum += v * w; weight += w; });
      return weight ? sum / weight : null;
    };
    const rows = [...timeline.bands].reverse().map((band) => h("tr", {},
      h("th", { scope: "row" },
        h("span", { className: "swatch", style: { background: band.kind === "rest" ? "var(--rest)" : colorOf(band.name) } }),
        nameCell(band)),
      cell(percent(at === null ? band.total : band.share[at]), "number"),
      cell(percent(at === null ? mean(band.requested) : band.requested[at]), "number"),
      ...details(band.name)));
    legend.replaceChildren(table([
      { title: "source" }, { title: "delivered", className: "number" }, { title: "requested", className: "number" },
      { title: "epochs", className: "number wide" }, { title: "first repeat", className: "number wide" },
      { title: "used up", className: "number wide" }, { title: "remarks", className: "wide" },
    ], rows, { label: "Shares of the sources" }));
    const unit = timeline.unit;
    range.textContent = at === null
      ? `${unit}s ${count(timeline.first)} to ${count(timeline.stop)}, shares of ${timeline.by}. Dashed lines: requested, if it differs. Drag to zoom, double-click to open a ${unit}.`
      : `${unit}s ${count(timeline.steps[at])} to ${count(timeline.steps[at + 1])}`;
  }
  const stepLink = (n) => h("a", { href: hashOf("step", { step: n }) }, count(n));
  function nameCell(band) {
    if (band.kind === "group") {
      return h("button", { type: "button", className: "link", onclick: () => show({ unfold: [...state.unfold, band.name] }), title: "Unfold the group" }, `▸ ${band.name} (${band.sources})`);
    }
    const group = overview.sources.find((s) => s.name === band.name)?.group;
    return [
      h("bdi", {}, band.name),
      group && state.groups === "1" ? h("button", { type: "button", className: "link small", onclick: () => show({ unfold: state.unfold.filter((g) => g !== group) }) }, `fold ${group}`) : null,
      state.pin.includes(band.name) ? h("button", { type: "button", className: "link small", "aria-label": `remove ${band.name}`, onclick: () => show({ pin: state.pin.filter((p) => p !== band.name) }) }, "remove") : null,
    ];
  }
  function shownMarks(timeline) {
    const names = new Set(timeline.bands.map((b) => b.name));
    return (sources?.marks ?? []).filter((m) =>
      ["stage", "state", "change"].includes(m.kind) || names.has(m.source) || overview.sources.length <= 12);
  }
  function draw(timeline) {
    latest = timeline;
    chart?.destroy();
    holder.replaceChildren();
    for (const band of timeline.bands) colorOf(band.name);
    chart = drawShares(holder, timeline, {
      marks: shownMarks(timeline), height: innerWidth < 600 ? 240 : 360,
      onZoom: (a, b) => show({ first: a, stop: overview.ends ? Math.min(b, overview.steps) : b }),
      onPoint: (n) => goTo("step", { step: Math.max(0, n) }),
      onHover: (at) => drawLegend(timeline, at),
    });
    drawLegend(timeline, null);
    drawMarkList(timeline);
  }
  function drawMarkList(timeline) {
    const marks = (sources?.marks ?? []).filter((m) => m.step >= timeline.first && m.step <= timeline.stop);
    if (!marks.length) return markList.replaceChildren(h("p", { className: "dim" }, sources ? "No stage, repeat, end or change in these steps." : ""));
    const isShort = marks.length > MAX_MARK_ROWS + 3 && !allMarks;
    const rows = (isShort ? marks.slice(0, MAX_MARK_ROWS) : marks).map((m) => h("tr", {}, cell(stepLink(m.step), "number"), cell(MARK_NAMES[m.kind]), cell(h("bdi", {}, m.text))));
    markList.replaceChildren(
      h("h2", {}, "Events in these steps"),
      table([{ title: timeline.unit, className: "number" }, { title: "kind" }, { title: "what happens" }], rows, { label: "Events" }),
      isShort ? h("button", { type: "button", onclick: () => { allMarks = true; drawMarkList(timeline); } }, `Show ${count(marks.length - MAX_MARK_ROWS)} more`) : "");
  }
  async function update(q) {
    abort.abort();
    abort = new AbortController();
    state = read(q);
    first.value = count(state.first);
    last.value = count(state.stop);
    fold.checked = state.groups === "1";
    const { signal } = abort;
    await fetchTimeline({ ...state, points: innerWidth < 600 ? 60 : 96 }, draw, signal);
    if (sources === null) {
      sources = await get("sources", {}, signal);
      draw(latest);
    }
    say("");
  }
  const ready = update(query);
  return {
    ready,
    update: (q) => update(q).catch(report),
    close() { abort.abort(); chart?.destroy(); },
    onKey(key) {
      if (key === "+" || key === "=") zoom(0.5);
      else if (key === "-") zoom(2);
      else if (key === "ArrowLeft") pan(-0.25);
      else if (key === "ArrowRight") pan(0.25);
      else if (key === "0") show({ first: 0, stop: overview.steps });
      else return false;
      return true;
    },
  };
}
