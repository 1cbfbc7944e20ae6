"use strict";
// The page of `lightkit board --table`. Whatever comes from runs goes into the page as text, never as markup.

const ROW = 30;                    // height of a row in pixels, with its line
const AROUND = 40;                 // rows that are fetched above and below those in sight
const MEASURED = new Set(["best", "mean", "± sd"]);
const at = id => document.getElementById(id);
const scroller = at("scroll"), card = at("card");

// What is asked for stands in the address, so that it can be reloaded and kept as a bookmark.
const address = new URLSearchParams(location.hash.slice(1));
const state = {
  where: address.get("where") || "", sort: address.get("sort") || "", group: address.getAll("group"),
  column: address.has("column") ? address.getAll("column")
    : ["name", "metric", "best", "epochs", "seed", "started", "tags", "note"],
};
let known = null;                  // the last answer, with the rows of those before
let asked = "", version = 0, number = 0, timer = 0, widths = {};

function make(tag, text = "", cls = "") {
  const node = document.createElement(tag);
  node.textContent = text;
  if (cls) node.className = cls;
  return node;
}

// ---- asking the server

function query(since) {
  const grouped = state.group.length > 0;
  const first = grouped ? 0 : Math.max(0, Math.floor(scroller.scrollTop / ROW) - AROUND);
  const count = grouped ? 1e6 : Math.ceil(scroller.clientHeight / ROW) + 2 * AROUND;
  const words = new URLSearchParams({ where: state.where, sort: grouped ? "" : state.sort, first, count });
  for (const name of columns()) words.append("column", name);
  return { text: String(words), first, words: `${words}&since=${since}` };
}

const columns = () => ["status", ...(state.group.length ? [...state.group, "metric", "best"] : state.column)];

async function ask() {
  clearTimeout(timer);
  const mine = ++number, { text, first, words } = query(query().text === asked ? version : 0);
  let answer, pause = 2;
  try {
    answer = await (await fetch(`rows?${words}`)).json();
  } catch {
    at("counts").textContent = "The board does not answer. Start it again: lightkit board --table";
  }
  if (mine !== number) return;
  if (answer) {
    pause = answer.pause;
    take(answer, text, first);
  }
  if (!document.hidden) timer = setTimeout(ask, 1000 * pause);
}

function take(answer, text, first) {
  if (known) count();
  if (answer.mistake !== undefined) {
    showMistake(answer.mistake);
    asked = "";
    if (!known) at("counts").textContent = "";
    return;
  }
  if (!answer.order) return;       // nothing has changed
  showMistake("");
  const rows = {}, before = asked === text && known ? known.rows : {};
  for (const mark of answer.order) rows[mark] = answer.rows[mark] || before[mark];
  if (answer.order.some(mark => !rows[mark])) {   // it came into sight as others went
    asked = "";
    ask();
    return;
  }
  known = { ...answer, rows, first, group: state.group, names: state.column };
  [asked, version] = [text, answer.version];
  count();
  arrange();
  if (shown && shown.marks.some(mark => answer.rows[mark])) fillCard();
}

function showMistake(text) {
  at("mistake").textContent = text;
  at("mistake").hidden = !text;
  at("where").classList.toggle("wrong", Boolean(text));
}

function count() {
  const running = Object.keys(known.live).length, [total, of] = [known.total, known.of].map(each => each.toLocaleString("en"));
  at("counts").textContent = (total === of ? of : `${total} of ${of}`) + (running ? ` · ${running} running` : "");
  at("counts").title = known.folder;
}

function change(more) {
  Object.assign(state, more);
  const words = new URLSearchParams({ where: state.where, sort: state.sort });
  for (const name of ["group", "column"]) for (const each of state[name]) words.append(name, each);
  history.replaceState(null, "", `#${words}`);
  widths = {};
  scroller.scrollTop = 0;
  hideCard();
  nameMenus();
  if (known && state.group === known.group && state.group.length) arrange();   // groups are sorted here
  ask();
}

// ---- groups: made here, of the runs that the server has chosen

function groups() {
  const found = new Map(), keys = known.group.length;
  for (const mark of known.order) {
    const cells = known.rows[mark], id = JSON.stringify(cells.slice(1, 1 + keys));
    if (!found.has(id)) found.set(id, { mark: id, marks: [], values: cells.slice(1, 1 + keys), by: {}, running: 0 });
    const group = found.get(id), [metric, best] = cells.slice(-2);
    group.marks.push(mark);
    group.running += mark in known.live;
    if (best !== null) (group.by[metric] ||= []).push([best, mark]);
  }
  const rows = [...found.values()].map(group => {
    // a mean is of one metric: the one that most runs of the group have
    const [metric, counted] = Object.entries(group.by).sort((a, b) => b[1].length - a[1].length)[0] || ["", []];
    const values = counted.map(each => each[0]), mean = values.reduce((a, b) => a + b, 0) / values.length;
    const sd = Math.sqrt(values.reduce((sum, each) => sum + (each - mean) ** 2, 0) / (values.length - 1));
    const marks = counted.length ? counted.map(each => each[1]) : group.marks;
    const facts = [group.marks.length, metric, values.length ? mean : null, values.length > 1 ? sd : null, values.length];
    return { ...group, marks, cells: [...group.values, ...facts] };
  });
  const by = heads().indexOf(state.sort.replace(/^-/, "")), sign = state.sort[0] === "-" ? -1 : 1;
  const order = (a, b) => (a === null) - (b === null)
    || sign * (Number(a) - Number(b) || String(a).localeCompare(String(b), "en", { numeric: true }));
  return by < 0 ? rows : rows.sort((a, b) => order(a.cells[by], b.cells[by]));
}

const heads = () => known.group.length ? [...known.group, "runs", "metric", "mean", "± sd", "n"] : ["status", ...known.names];

function arrange() {
  known.list = known.group.length ? groups() : known.order.map(mark => ({ mark, marks: [mark], cells: known.rows[mark] }));
  draw();
}

// ---- drawing the table: only rows in sight are there, between two spaces

function draw() {
  const grouped = known.group.length > 0, names = heads(), total = grouped ? known.list.length : known.total;
  const top = grouped ? Math.max(0, Math.floor(scroller.scrollTop / ROW) - AROUND) : known.first;
  const part = grouped ? known.list.slice(top, top + Math.ceil(scroller.clientHeight / ROW) + 2 * AROUND) : known.list;
  const right = names.map((_, i) => part.some(row => typeof row.cells[i] === "number"));
  at("heads").replaceChildren(...names.map((name, i) => head(name, right[i])), make("th", "", "fill"));
  const focused = document.activeElement?.dataset?.mark;
  const body = part.map(row => line(row, names, right, grouped));
  at("rows").replaceChildren(space(top), ...body, space(total - top - part.length));
  body.find(node => node.dataset.mark === focused)?.focus({ preventScroll: true });
  names.forEach((name, i) => {     // a column never gets narrower while one scrolls
    widths[name] = Math.max(widths[name] || 0, at("heads").children[i].offsetWidth);
  });
  at("empty").hidden = total > 0;
  at("empty").textContent = known.of ? `None of ${known.of} runs is like that.`
    : `There are no runs in ${known.folder} yet: lightkit train makes one.`;
}

function head(name, right) {
  const th = make("th", "", right ? "right" : ""), button = make("button");
  const sorted = state.sort.replace(/^-/, "") === name;
  button.textContent = name + (sorted ? (state.sort[0] === "-" ? " ▴" : " ▾") : "");
  button.title = "sort: the best or the smallest first, then the other way round, then as before";
  button.onclick = () => change({ sort: !sorted ? name : state.sort[0] === "-" ? "" : `-${name}` });
  if (sorted) th.setAttribute("aria-sort", state.sort[0] === "-" ? "descending" : "ascending");
  if (widths[name]) th.style.minWidth = `${widths[name]}px`;
  th.append(button);
  return th;
}

function space(rows) {
  const tr = make("tr", "", "space");
  tr.append(make("td"));
  tr.firstChild.style.height = `${Math.max(0, rows) * ROW}px`;
  return tr;
}

function line(row, names, right, grouped) {
  const tr = make("tr", "", "run");
  tr.dataset.mark = row.mark;
  tr.tabIndex = 0;
  names.forEach((name, i) => {
    const td = make("td", "", right[i] ? "right" : ""), value = row.cells[i];
    if (name === "status" && !grouped) fillStatus(td, value, known.live[row.mark]);
    else if (name === "tags" && value) td.append(...value.split(",").map(tag => make("span", tag, "tag")));
    else td.textContent = text(name, value);
    if (name === "runs" && row.running) td.textContent += ` (${row.running} running)`;
    if (typeof value === "string") td.title = value;
    tr.append(td);
  });
  tr.append(make("td"));
  if (shown?.kept && shown.mark === row.mark) tr.classList.add("kept");
  tr.onmouseenter = event => hover(row, event.clientX, event.clientY);
  tr.onmouseleave = () => shown?.kept || hideCard();
  tr.onfocus = () => hover(row, 300, tr.getBoundingClientRect().bottom);
  tr.onclick = () => grouped ? open(row) : keep(row, tr);
  tr.onkeydown = event => event.key === "Enter" && tr.onclick();
  return tr;
}

function fillStatus(td, status, live) {
  td.append(make("span", status, `status ${status}`));
  if (!live || live.share === null) return;
  const bar = make("progress"), left = live.eta_seconds;
  bar.value = live.share;
  const time = left === null ? "" : left < 90 ? ` · ${Math.round(left)} s left` : left < 5400
    ? ` · ${Math.round(left / 60)} min left` : ` · ${(left / 3600).toFixed(1)} h left`;
  td.append(bar, make("span", `${Math.floor(100 * live.share)} %${time}`, "soft"));
}

function text(name, value) {
  if (value === null) return "";
  if (typeof value === "number" && (name.includes("/") || MEASURED.has(name))) {
    const size = Math.abs(value);
    return size && (size >= 1e5 || size < 1e-3) ? value.toExponential(2) : value.toFixed(4);
  }
  const path = /^[a-z_]\w*(\.\w+)*\.([A-Z]\w*)$/.exec(value);   // a class goes by its own name
  return path ? path[2] : String(value);
}

// A group opens as its runs: its values become conditions.
function open(row) {
  const more = known.group.map((key, i) => `${key}=${row.values[i]}`);
  change({ where: [state.where, ...more].filter(part => part.trim()).join(" and "), group: [], sort: "" });
  at("where").value = state.where;
}

// ---- the card beside a row: what was typed for the run, and its curve

let shown = null, wait = 0;

function hover(row, x, y) {
  if (shown?.kept) return;
  clearTimeout(wait);
  shown = { mark: row.mark, marks: row.marks.slice(0, 8), of: row.marks.length, kept: false, x, y, title: row.values ? known.group.map((key, i) => `${key}=${text(key, row.values[i]) || "–"}`).join(", ") : "" };
  wait = setTimeout(fillCard, 120);
}

function hideCard() {
  clearTimeout(wait);
  shown = null;
  card.hidden = true;
  card.classList.remove("kept");
  for (const row of document.querySelectorAll("tr.kept")) row.classList.remove("kept");
}

function keep(row, tr) {
  const same = shown?.kept && shown.mark === row.mark, place = shown || { x: 300, y: tr.getBoundingClientRect().bottom };
  hideCard();
  if (same) return;
  hover(row, place.x, place.y);
  shown.kept = true;
  card.classList.add("kept");
  tr.classList.add("kept");
}

async function fillCard() {
  const mine = shown, words = new URLSearchParams(mine.marks.map(mark => ["run", mark]));
  const answer = await fetch(`curve?${words}`).then(got => got.ok ? got.json() : null, () => null);
  if (mine !== shown || !answer) return;
  const alone = mine.marks.length === 1 && !mine.title;
  const title = make("h2", mine.title || answer.name), parts = [title];
  if (alone) {
    parts.push(make("p", mine.mark.replace(`${known.folder}/`, ""), "soft"), make("pre", answer.typed));
    const members = Math.max(...answer.curve?.seeds || [1]);
    if (members > 1) parts.push(make("p", `mean and deviation of its ${members} members`, "soft"));
    if (answer.note) parts.push(make("p", answer.note));
    if (answer.said) parts.push(make("pre", answer.said, "bad"));
  } else if (mine.of > 1) {
    parts.push(make("p", `mean and deviation of ${mine.of > 8 ? "the newest 8 of " : ""}${mine.of} runs`, "soft"));
  }
  parts.push(answer.curve ? drawing(answer.metric, answer.curve) : make("p", `No curve of ${answer.metric}.`, "soft"));
  card.replaceChildren(...parts);
  card.hidden = false;
  const { width, height } = card.getBoundingClientRect();
  card.style.left = `${Math.max(8, Math.min(mine.x + 24, innerWidth - width - 8))}px`;
  card.style.top = `${mine.y + 20 + height < innerHeight ? mine.y + 20 : Math.max(8, mine.y - height - 20)}px`;
}

function svg(tag, attributes, text = "") {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.textContent = text;
  return node;
}

function drawing(metric, { steps, means, deviations, seeds }) {
  const lows = means.map((mean, i) => mean - deviations[i]), highs = means.map((mean, i) => mean + deviations[i]);
  const low = Math.min(...lows), high = Math.max(...highs), first = steps[0], last = steps.at(-1);
  const x = step => 52 + 312 * (step - first) / (last - first), y = value => 128 - 104 * (high > low ? (value - low) / (high - low) : 0.5);
  const points = values => values.map((value, i) => `${x(steps[i]).toFixed(1)},${y(value).toFixed(1)}`);
  const node = svg("svg", { viewBox: "0 0 372 150", role: "img", "aria-label": `${metric} over the steps` });
  node.append(svg("text", { x: 52, y: 11 }, metric));
  node.append(svg("text", { x: 364, y: 11, "text-anchor": "end" }, `last ${text("best", means.at(-1))}`));
  for (const value of high > low ? [low, high] : [low]) {
    node.append(svg("line", { class: "rule", x1: 52, x2: 364, y1: y(value), y2: y(value) }));
    node.append(svg("text", { x: 46, y: y(value) + 4, "text-anchor": "end" }, text("best", value)));
  }
  if (Math.max(...seeds) > 1) node.append(svg("polygon", { class: "band", points: [...points(lows), ...points(highs).reverse()].join(" ") }));
  node.append(svg("polyline", { class: "curve", points: points(means).join(" ") }));
  node.append(svg("circle", { class: "dot", r: 2.5, cx: x(last), cy: y(means.at(-1)) }));
  node.append(svg("text", { x: 52, y: 146 }, `step ${first}`), svg("text", { x: 364, y: 146, "text-anchor": "end" }, String(last)));
  return node;
}

// ---- the menus

function nameMenus() {
  at("group").classList.toggle("used", state.group.length > 0);
  at("group").firstElementChild.textContent = ["Group by", state.group.join(", ")].join(" ").trim();
}

async function openMenu(menu) {
  const place = menu.lastElementChild, search = make("input"), list = make("ul");
  const names = await (await fetch("names")).json(), option = menu.id;
  search.type = "search";
  search.placeholder = "find a key or a metric";
  search.oninput = () => {
    const chosen = state[option], others = names.filter(name => !chosen.includes(name) && name !== "status" | option === "group");
    const fitting = [...chosen, ...others].filter(name => name.toLowerCase().includes(search.value.toLowerCase()));
    list.replaceChildren(...fitting.slice(0, 200).map(name => {
      const item = make("li"), label = make("label", ` ${name}`), box = make("input");
      box.type = "checkbox";
      box.checked = chosen.includes(name);
      box.onchange = () => change({ [option]: box.checked ? [...state[option], name] : state[option].filter(each => each !== name), ...(option === "group" ? { sort: "" } : {}) });
      label.prepend(box);
      item.append(label);
      return item;
    }));
  };
  search.oninput();
  place.replaceChildren(search, list);
  search.focus();
}

for (const menu of document.querySelectorAll(".menu")) menu.ontoggle = () => menu.open && openMenu(menu);
addEventListener("click", event => {
  for (const menu of document.querySelectorAll(".menu[open]")) if (!menu.contains(event.target)) menu.open = false;
  if (shown?.kept && !card.contains(event.target) && !event.target.closest("tr")) hideCard();
});
addEventListener("keydown", event => {
  if (event.key !== "Escape") return;
  hideCard();
  for (const menu of document.querySelectorAll(".menu[open]")) menu.open = false;
});

let typing = 0, scrolling = 0;
at("where").value = state.where;
at("where").oninput = () => {
  clearTimeout(typing);
  typing = setTimeout(() => change({ where: at("where").value }), 250);
};
scroller.onscroll = () => {
  if (shown && !shown.kept) hideCard();
  if (!known) return;
  if (known.group.length) { draw(); return; }
  cancelAnimationFrame(scrolling);
  scrolling = requestAnimationFrame(() => {
    const top = Math.floor(scroller.scrollTop / ROW), end = top + Math.ceil(scroller.clientHeight / ROW);
    const isThere = top >= known.first && Math.min(end, known.total) <= known.first + known.order.length;
    if (!isThere) ask();
  });
};
addEventListener("resize", ask);
document.addEventListener("visibilitychange", () => document.hidden || ask());
nameMenus();
ask();
