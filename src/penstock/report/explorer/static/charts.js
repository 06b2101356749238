// Charts by uPlot: stacked shares with marks, and lines.

import { count, percent, resolveColor } from "./lib.js";

/* global uPlot */

const VISIBLE = 0.004; // a smaller difference of delivered and requested shares draws no line

function css(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

function axes(unit) {
  const base = { stroke: css("--dim"), grid: { stroke: css("--grid"), width: 1 }, ticks: { stroke: css("--grid"), size: 4 }, font: "12px system-ui, sans-serif" };
  return [
    { ...base, values: (_, values) => values.map((v) => (Number.isInteger(v) ? shorten(v) : "")), space: 70, label: unit, labelSize: 18, labelFont: "12px system-ui, sans-serif", size: 32 },
    { ...base, size: 46 },
  ];
}

/** A number of at most six characters, such as 1.5M. */
export function shorten(n) {
  for (const [size, letter] of [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e4, "k"]]) {
    if (Math.abs(n) >= size) {
      const divisor = letter === "k" ? 1e3 : size;
      return `${Number((n / divisor).toPrecision(5))}${letter}`;
    }
  }
  return count(n);
}

const stepped = () => uPlot.paths.stepped({ align: 1 });

/** Draw the stacked shares of a timeline into an element; return an object with `destroy`. */
export function drawShares(holder, timeline, { marks = [], onZoom = null, onPoint = null, onHover = null, height = 320, position = null } = {}) {
  const { steps, bands } = timeline;
  const extend = (values) => [...values, values.at(-1) ?? null];
  const sums = [], wanted = [];
  let below = new Array(steps.length).fill(0), asked = new Array(steps.length).fill(0);
  for (const band of bands) {
    below = extend(band.share).map((v, i) => v + below[i]);
    asked = extend(band.requested).map((v, i) => v + asked[i]);
    sums.push(below);
    wanted.push(asked);
  }
  const order = bands.map((_, i) => i).reverse(); // the largest sums first, the smaller ones over them
  const series = [{}], data = [steps];
  for (const i of order) {
    const color = resolveColor(bands[i].name, bands[i].kind);
    series.push({ label: bands[i].name, fill: color, stroke: css("--surface"), width: 1, paths: stepped(), points: { show: false } });
    data.push(sums[i]);
  }
  for (let i = 0; i < bands.length - 1; i++) {
    if (sums[i].every((v, k) => Math.abs(v - wanted[i][k]) < VISIBLE)) continue;
    series.push({ label: `${bands[i].name} requested`, stroke: css("--text"), width: 1, dash: [4, 4], paths: stepped(), points: { show: false } });
    data.push(wanted[i]);
  }
  const [x, y] = axes(timeline.unit);
  const options = {
    width: Math.max(260, holder.clientWidth), height,
    legend: { show: false },
    cursor: { drag: { x: onZoom !== null, y: false, setScale: false }, points: { show: false }, y: false },
    scales: { x: { time: false, range: () => [timeline.first, timeline.stop] }, y: { range: () => [0, 1] } },
    axes: [x, { ...y, values: (_, values) => values.map((v) => `${Math.round(v * 100)}%`) }],
    series,
    hooks: {
      draw: [(chart) => drawMarks(chart, marks, position)],
      setSelect: [(chart) => {
        if (chart.select.width < 4 || onZoom === null) return;
        const first = Math.floor(chart.posToVal(chart.select.left, "x"));
        const stop = Math.ceil(chart.posToVal(chart.select.left + chart.select.width, "x"));
        onZoom(Math.max(0, first), Math.max(first + 1, stop));
      }],
      setCursor: [(chart) => {
        if (onHover === null) return;
        const at = chart.cursor.left < 0 ? null : intervalAt(steps, chart.posToVal(chart.cursor.left, "x"));
        onHover(at);
      }],
    },
  };
  const chart = new uPlot(options, data, holder);
  if (onPoint !== null) {
    chart.over.addEventListener("dblclick", () => onPoint(Math.floor(chart.posToVal(chart.cursor.left, "x"))));
  }
  return follow(chart, holder, height);
}

function intervalAt(steps, value) {
  let i = 0;
  while (i + 2 < steps.length && steps[i + 1] <= value) i++;
  return i;
}

function drawMarks(chart, marks, position) {
  const { ctx, bbox } = chart, scale = devicePixelRatio;
  const text = css("--text"), paper = css("--surface");
  const visible = marks.filter((m) => m.step >= chart.scales.x.min && m.step <= chart.scales.x.max);
  const line = (at, color, dash, width) => {
    ctx.beginPath();
    ctx.setLineDash(dash.map((d) => d * scale));
    ctx.strokeStyle = color;
    ctx.lineWidth = width * scale;
    ctx.moveTo(at, bbox.top);
    ctx.lineTo(at, bbox.top + bbox.height);
    ctx.stroke();
  };
  ctx.save();
  let free = -Infinity;
  ctx.textAlign = "left";
  ctx.font = `${12 * scale}px system-ui, sans-serif`;
  for (const mark of visible) {
    const at = Math.round(chart.valToPos(mark.step, "x", true));
    if (mark.kind === "stage") line(at, text, [], 1);
    else if (mark.kind === "change") line(at, text, [2, 3], 1.5);
    else if (mark.kind === "state") line(at, css("--accent"), [], 2);
    else {
      ctx.setLineDash([]);
      ctx.fillStyle = text;
      ctx.strokeStyle = paper;
      ctx.lineWidth = scale;
      const low = bbox.top + bbox.height, size = 5 * scale;
      ctx.beginPath();
      if (mark.kind === "repeat") { ctx.moveTo(at - size, low); ctx.lineTo(at + size, low); ctx.lineTo(at, low - 1.6 * size); ctx.closePath(); }
      else ctx.rect(at - size / 1.5, low - size * 1.5, size * 1.4, size * 1.4);
      ctx.fill();
      ctx.stroke();
    }
    const label = mark.kind === "stage" ? mark.source : mark.kind === "state" ? "state" : null;
    if (label === null) continue;
    const shown = label.length > 24 ? `${label.slice(0, 23)}…` : label;
    const width = ctx.measureText(shown).width + 8 * scale;
    const left = Math.min(at + 3 * scale, bbox.left + bbox.width - width);
    if (left < free) continue;
    ctx.globalAlpha = 0.85;
    ctx.fillStyle = paper;
    ctx.fillRect(left, bbox.top + 3 * scale, width, 17 * scale);
    ctx.globalAlpha = 1;
    ctx.fillStyle = text;
    ctx.textBaseline = "middle";
    ctx.fillText(shown, left + 4 * scale, bbox.top + 12 * scale);
    free = left + width;
  }
  if (position !== null) line(Math.round(chart.valToPos(position, "x", true)), css("--accent"), [], 2);
  ctx.restore();
}

/** Draw lines over time; `lines` is a list of {label, values, color}. */
export function drawLines(holder, x, lines, { time = false, format = count, height = 180, unit = "" } = {}) {
  const [bottom, left] = axes(unit);
  const clock = (seconds) => new Date(seconds * 1000).toTimeString().slice(0, 8);
  const options = {
    width: Math.max(260, holder.clientWidth), height,
    legend: { show: false },
    cursor: { drag: { x: false, y: false } },
    scales: { x: { time: false }, y: { range: (_, low, high) => [0, Math.max(high * 1.1, 1e-6)] } },
    axes: [time ? { ...bottom, values: (_, values) => values.map(clock) } : bottom, { ...left, size: 60, values: (_, values) => values.map(format) }],
    series: [{}, ...lines.map((l) => ({ label: l.label, stroke: resolveColor(l.color ?? l.label), width: 2, spanGaps: false, points: { show: x.length < 3 } }))],
  };
  return follow(new uPlot(options, [x, ...lines.map((l) => l.values)], holder), holder, height);
}

function follow(chart, holder, height) {
  const observer = new ResizeObserver(() => {
    const width = Math.max(260, holder.clientWidth);
    if (width !== chart.width) chart.setSize({ width, height });
  });
  observer.observe(holder);
  return { chart, destroy() { observer.disconnect(); chart.destroy(); } };
}

export { percent };
