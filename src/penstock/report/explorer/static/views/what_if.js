// What if: weights, caps, stages and the horizon by hand; the plan follows.

import { report } from "../app.js";
import { drawShares } from "../charts.js";
import { cell, colorOf, count, debounce, fixed, get, h, hashOf, percent, post, say, table } from "../lib.js";
import { fetchTimeline } from "./timeline.js";

const MAX_CONTROLS = 24;

export function open({ content, overview }) {
  let abort = new AbortController(), chart = null, settings = null;
  const edit = { weights: {}, groups: {}, caps: {}, stages: {}, horizon: null };
  const controls = h("div", { className: "controls" }), result = h("div"), holder = h("div", { className: "chart", role: "img", "aria-label": "Shares of the changed plan" });
  const filter = h("input", { type: "search", id: "filter", placeholder: "source or group" });
  const name = h("input", { type: "text", id: "name", size: 24, value: "mixture-edited.yaml" });
  const timing = h("p", { className: "dim", role: "status" });
  const text = h("div");
  const isEmpty = () => !Object.keys(edit.weights).length && !Object.keys(edit.groups).length && !Object.keys(edit.caps).length && !Object.keys(edit.stages).length && edit.horizon === null;

  content.append(h("div", { className: "split wide-left" },
    h("div", {}, h("div", { className: "bar" }, h("label", { htmlFor: "filter" }, "Find"), filter, h("button", { type: "button", onclick: () => reset() }, "Reset")), controls),
    h("div", {}, timing, holder, result,
      h("div", { className: "bar" }, h("label", { htmlFor: "name" }, "Save as"), name,
        h("button", { type: "button", onclick: () => save("save") }, "Mixture file"),
        overview.state === null ? null : h("button", { type: "button", onclick: () => save("save_run") }, "Change of the run"),
        h("button", { type: "button", onclick: () => showText() }, "Show the text")), text)));

  function reset() {
    Object.assign(edit, { weights: {}, groups: {}, caps: {}, stages: {}, horizon: null });
    drawControls();
    plan();
  }
  function control(label, value, maximum, change, { color = null, optional = false } = {}) {
    const id = `c${control.number = (control.number ?? 0) + 1}`;
    const slider = h("input", { type: "range", min: 0, max: maximum, step: "any", "aria-label": `${label}, slider`, id: `${id}s` });
    const number = h("input", { type: "number", min: 0, step: "any", id, placeholder: optional ? "none" : "" });
    slider.value = value ?? maximum;
    number.value = value === null ? "" : Number(Number(value).toPrecision(6));
    slider.addEventListener("input", () => { number.value = Number(Number(slider.value).toPrecision(3)); change(Number(number.value)); });
    number.addEventListener("input", () => {
      if (number.value === "") { if (optional) change(null); return; }
      if (!(Number(number.value) >= 0)) return;
      slider.value = number.value;
      change(Number(number.value));
    });
    return h("div", { className: "control" },
      h("label", { htmlFor: id }, color ? h("span", { className: "swatch", style: { background: color } }) : null, h("bdi", {}, label)), slider, number);
  }
  function drawControls() {
    const wanted = filter.value.trim().toLowerCase(), matches = (n) => n.toLowerCase().includes(wanted);
    const sections = [];
    if (settings.reason) sections.push(h("p", { className: "note" }, `Weights: ${settings.reason}.`));
    const groups = Object.entries(settings.groups).filter(([n]) => matches(n));
    const largest = (values) => 2 * Math.max(...Object.values(values), 1e-9);
    if (groups.length) {
      sections.push(h("h2", {}, "Weights of groups"), groups.map(([n, w]) => control(n, edit.groups[n] ?? w, largest(settings.groups), (v) => { edit.groups[n] = v; plan(); }, { color: colorOf(n) })));
    }
    settings.stages.forEach((stage, number) => {
      const now = () => (edit.stages[number] ??= { until: null, weights: {} });
      const rows = [];
      if (stage.until && matches(stage.name)) {
        const unit = stage.until.unit, maximum = unit === "percent" ? 100 : 2 * stage.until.number;
        rows.push(control(`ends at (${unit})`, edit.stages[number]?.until ?? stage.until.number, maximum, (v) => { now().until = v; plan(); }));
      }
      rows.push(...Object.entries(stage.weights).filter(([n]) => matches(n) || matches(stage.name)).slice(0, MAX_CONTROLS).map(([n, w]) =>
        control(n, edit.stages[number]?.weights[n] ?? w, largest(stage.weights), (v) => { now().weights[n] = v; plan(); }, { color: colorOf(n) })));
      if (rows.length) sections.push(h("h2", {}, `Stage ${stage.name}`), rows);
    });
    const weights = Object.entries(settings.weights).filter(([n]) => matches(n) || matches(settings.group_of[n] ?? "")).sort((a, b) => b[1] - a[1]);
    if (weights.length) {
      const grouped = Object.keys(settings.group_of).length > 0;
      sections.push(h("h2", {}, grouped ? "Weights of sources, within their groups" : "Weights"),
        weights.slice(0, MAX_CONTROLS).map(([n, w]) => control(n, edit.weights[n] ?? w, largest(settings.weights), (v) => { edit.weights[n] = v; plan(); }, { color: colorOf(n) })),
        weights.length > MAX_CONTROLS ? h("p", { className: "dim" }, `and ${count(weights.length - MAX_CONTROLS)} more: type a name to find them`) : []);
    }
    const caps = Object.entries(settings.caps).filter(([n]) => matches(n)).sort((a, b) => (b[1] !== null) - (a[1] !== null));
    if (caps.length) {
      sections.push(h("details", {}, h("summary", {}, "Caps: maximum epochs"),
        caps.slice(0, MAX_CONTROLS).map(([n, c]) => control(n, n in edit.caps ? edit.caps[n] : c, Math.max(2 * (c ?? 0), 10), (v) => { edit.caps[n] = v === 0 ? null : v; plan(); }, { color: colorOf(n), optional: true })),
        caps.length > MAX_CONTROLS ? h("p", { className: "dim" }, `and ${count(caps.length - MAX_CONTROLS)} more: type a name to find them`) : []));
    }
    if (settings.horizon) {
      const { unit, number } = settings.horizon;
      sections.push(h("h2", {}, "Horizon"), control(unit, edit.horizon ?? number, 2 * number, (v) => { edit.horizon = v; plan(); }));
    }
    controls.replaceChildren(...sections.flat(Infinity));
  }
  filter.addEventListener("input", debounce(drawControls, 80));

  const plan = debounce(() => follow().catch(report), 60);
  async function follow() {
    abort.abort();
    abort = new AbortController();
    const { signal } = abort, began = performance.now();
    let answer;
    try {
      answer = await post("edit", { edit }, signal);
    } catch (error) {
      if (error.name === "AbortError") return;
      timing.replaceChildren(h("span", { className: "error" }, error.message));
      return;
    }
    const milliseconds = Math.round(performance.now() - began);
    drawResult(answer);
    timing.textContent = `${isEmpty() ? "The plan as it is" : "The changed plan"}: ${count(answer.steps)} ${answer.unit}s, planned in ${count(milliseconds)} ms. `;
    if (!isEmpty()) timing.append(h("a", { href: hashOf("compare", { of: "main", with: "edited" }) }, "Compare it with the file"));
    await fetchTimeline({ of: "edited", points: 32, bands: 11 }, (timeline) => {
      chart?.destroy();
      holder.replaceChildren();
      chart = drawShares(holder, timeline, { height: 240 });
    }, signal);
  }
  function drawResult(answer) {
    const names = Object.keys(answer.after);
    names.sort((a, b) => Math.abs(answer.after[b][0] - (answer.before[b]?.[0] ?? 0)) - Math.abs(answer.after[a][0] - (answer.before[a]?.[0] ?? 0)) || answer.after[b][0] - answer.after[a][0]);
    const rows = names.slice(0, 14).map((n) => {
      const [share, epochs] = answer.after[n], [old, oldEpochs] = answer.before[n] ?? [0, 0];
      return h("tr", {}, h("th", { scope: "row" }, h("span", { className: "swatch", style: { background: colorOf(n) } }), h("bdi", {}, n)),
        cell(percent(old), "number"), cell(percent(share), "number"), cell(`${share >= old ? "+" : "−"}${(100 * Math.abs(share - old)).toFixed(2)}`, "number wide"),
        cell(fixed(oldEpochs), "number wide"), cell(fixed(epochs), "number"));
    });
    result.replaceChildren(table([{ title: "source" }, { title: "share now", className: "number" }, { title: "changed", className: "number" }, { title: "points", className: "number wide" }, { title: "epochs now", className: "number wide" }, { title: "epochs", className: "number" }], rows, { label: "Shares before and after" }),
      names.length > rows.length ? h("p", { className: "dim" }, `${count(names.length - rows.length)} more change less`) : "");
  }
  async function save(command) {
    try {
      const saved = await post(command, { edit, name: name.value.trim() });
      say(`Saved: ${saved.path}`);
      text.replaceChildren(h("p", {}, "Saved: ", h("code", {}, h("bdi", {}, saved.path))));
    } catch (error) {
      report(error);
    }
  }
  async function showText() {
    try {
      const answer = await post("format", { edit });
      text.replaceChildren(h("pre", { tabIndex: 0 }, answer.text));
    } catch (error) {
      report(error);
    }
  }
  const ready = (async () => {
    settings = await get("settings");
    const used = [...Object.keys(settings.groups), ...overview.sources.slice(0, 12).map((s) => s.name)];
    for (const n of used) colorOf(n);
    drawControls();
    await follow();
  })();
  return { ready, update() {}, close() { abort.abort(); chart?.destroy(); } };
}
