'use strict';
const devices = JSON.parse(document.getElementById('data').textContent);
const tip = document.getElementById('tip');
const W = 1000, H = 300, LEFT = 70, BOTTOM = 24, TOP = 14;

// Everything from the snapshot becomes text nodes or attributes, never markup.
function make(parent, name, attributes = {}, text = '') {
  const svg = parent instanceof SVGElement || name === 'svg';
  const node = svg ? document.createElementNS('http://www.w3.org/2000/svg', name)
    : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.textContent = text;
  parent.append(node);
  return node;
}

function size(bytes) {
  let unit = 0;
  for (; bytes >= 1024 && unit < 4; unit++) bytes /= 1024;
  return `${unit ? bytes.toFixed(1) : bytes} ${['B', 'KiB', 'MiB', 'GiB', 'TiB'][unit]}`;
}

function time(us) {
  return us >= 1e6 ? `${+(us / 1e6).toFixed(3)} s` : us >= 1e3 ? `${+(us / 1e3).toFixed(3)} ms` : `${+us.toFixed(1)} µs`;
}

function show(text, x, y) {
  tip.textContent = text;
  const box = tip.getBoundingClientRect();
  tip.style.left = `${Math.max(4, x + 16 + box.width > innerWidth ? x - box.width - 12 : x + 16)}px`;
  tip.style.top = `${Math.max(4, Math.min(y + 16, innerHeight - box.height - 4))}px`;
}
const hide = () => { tip.textContent = ''; };
const stack = site => site.stack.slice(0, 6).map(line => `\n  ${line}`).join('');

function chart(parent, device) {
  const { times, rows, reserved, marks } = device;
  const last = Math.max(times.at(-1), 1), top = Math.max(...reserved, ...device.total, 1) * 1.04;
  const x = t => LEFT + (W - LEFT) * t / last, y = b => H - BOTTOM - (H - BOTTOM - TOP) * b / top;
  const svg = make(parent, 'svg', { viewBox: `0 0 ${W} ${H}`, tabindex: 0, role: 'img', class: 'chart',
    'aria-label': 'Bytes alive over time by call site; the arrow keys move along it' });
  for (let bytes = 0, step = 2 ** Math.floor(Math.log2(top / 3)); bytes < top; bytes += step) {
    make(svg, 'line', { class: 'grid', x1: LEFT, x2: W, y1: y(bytes), y2: y(bytes) });
    make(svg, 'text', { x: LEFT - 6, y: y(bytes) + 4, 'text-anchor': 'end' }, size(bytes));
  }
  const decade = 10 ** Math.floor(Math.log10(last)), step = last < 2 * decade ? decade / 5 : last < 5 * decade ? decade / 2 : decade;
  for (let t = 0; t <= last; t += step) {
    make(svg, 'text', { x: x(t), y: H - 6, 'text-anchor': x(t) > W - 30 ? 'end' : t ? 'middle' : 'start' }, time(t));
  }
  const steps = heights => heights.map((b, i) => i ? `H${x(times[i]).toFixed(1)}V${y(b).toFixed(1)}`
    : `${x(0)},${y(b).toFixed(1)}`).join('') + `H${W}`;
  const back = heights => heights.map((b, i) => `V${y(b).toFixed(1)}H${x(times[i]).toFixed(1)}`).reverse().join('');
  let below = times.map(() => 0);
  const edges = rows.map(row => {
    const above = below.map((b, i) => b + row.bytes[i]);
    make(svg, 'path', { class: 'area', fill: row.color, d: `M${steps(above)}${back(below)}Z` });
    return below = above;
  });
  make(svg, 'path', { class: 'reserved', d: `M${steps(reserved)}` });
  let named = -W;
  for (const mark of marks) {
    const left = x(mark.time), text = mark.text.slice(0, 28), late = left > 0.85 * W;
    make(svg, 'line', { class: mark.kind, x1: left, x2: left, y1: TOP, y2: H - BOTTOM });
    if (left - named < 10 + 6 * text.length) continue; // the names would overlap
    named = left;
    make(svg, 'text', { x: left, y: 10, 'text-anchor': late ? 'end' : 'start' }, text);
  }
  const cursor = make(svg, 'line', { class: 'cursor', y1: TOP, y2: H - BOTTOM });
  let at = 0;
  function point(bytes, px, py) {
    cursor.setAttribute('x1', x(times[at]));
    cursor.setAttribute('x2', x(times[at]));
    cursor.style.visibility = 'visible';
    const row = edges.findIndex(edge => bytes < edge[at]);
    const near = marks.filter(mark => Math.abs(x(mark.time) - x(times[at])) < 4).map(mark => `\n${mark.text}`).join('');
    const head = `${time(times[at])}: ${size(device.total[at])} alive, ${size(reserved[at])} reserved${near}`;
    show(row < 0 ? head : `${head}\n\n${rows[row].name}: ${size(rows[row].bytes[at])}${stack(rows[row])}`, px, py);
  }
  svg.addEventListener('pointermove', event => {
    const box = svg.getBoundingClientRect(), scale = W / box.width;
    const t = ((event.clientX - box.left) * scale - LEFT) / (W - LEFT) * last;
    let low = 0, high = times.length;
    while (low < high) { const middle = low + high >> 1; if (times[middle] <= t) low = middle + 1; else high = middle; }
    at = Math.max(0, low - 1);
    point((H - BOTTOM - (event.clientY - box.top) * scale) / (H - BOTTOM - TOP) * top, event.clientX, event.clientY);
  });
  svg.addEventListener('keydown', event => {
    const step = { ArrowLeft: -1, ArrowRight: 1, PageUp: -20, PageDown: 20, Home: -Infinity, End: Infinity }[event.key];
    if (step === undefined) return;
    event.preventDefault();
    at = Math.max(0, Math.min(times.length - 1, at + step));
    const box = svg.getBoundingClientRect(), largest = rows.reduce((best, row, i) =>
      row.bytes[at] > (rows[best]?.bytes[at] ?? 0) ? i : best, -1);
    point(largest < 0 ? Infinity : edges[largest][at] - 1, box.left + x(times[at]) * box.width / W, box.top + 40);
  });
  for (const leave of ['pointerleave', 'blur']) svg.addEventListener(leave, () => { hide(); cursor.style.visibility = 'hidden'; });
  const legend = make(parent, 'ul', { class: 'legend' });
  for (const row of [...rows].reverse()) {
    const entry = make(legend, 'li');
    make(entry, 'span', { class: 'swatch' }).style.background = row.color;
    entry.append(row.name);
  }
  make(legend, 'li', {}, '┅ reserved');
}

function map(parent, device) {
  const longest = Math.max(...device.segments.map(segment => segment.size), 1);
  for (const segment of device.segments) {
    const line = make(parent, 'div', { class: 'segment' });
    make(line, 'span', {}, `${segment.name}  ${(segment.size / 2 ** 20).toFixed(1)} MiB`);
    const bar = make(line, 'div', { class: 'bar' });
    bar.style.width = `${Math.max(100 * segment.size / longest, 8)}%`;
    for (const [offset, bytes, state, name, color, count] of segment.blocks) {
      const part = make(bar, 'i', state.startsWith('active') && state !== 'active_allocated' ? { class: 'waits' } : {});
      part.style.left = `${100 * offset / segment.size}%`;
      part.style.width = `${100 * bytes / segment.size}%`;
      part.style.backgroundColor = color;
      part.text = `${size(bytes)} ${state.replaceAll('_', ' ')}${count > 1 ? `, ${count} small blocks` : ''}\n${name}`;
    }
  }
  parent.addEventListener('pointermove', event => event.target.text ? show(event.target.text, event.clientX, event.clientY) : hide());
  parent.addEventListener('pointerleave', hide);
  make(parent, 'p', { class: 'dim' }, 'Free memory is gray; striped blocks wait for a stream. The length of a bar is that of its '
    + `segment, at least 8%.${device.hidden ? ` ${device.hidden} smaller segments are not shown.` : ''}`);
}

function table(parent, device) {
  const columns = [['call site', 'name'], ['alive', 'alive'], ['peak', 'peak'], ['total', 'total'], ['allocations', 'allocations']];
  const node = make(parent, 'table', { class: 'sites' }), head = make(make(node, 'thead'), 'tr'), body = make(node, 'tbody');
  for (const use of device.uses) {
    use.line = make(body, 'tr');
    const first = make(use.line, 'td'), shown = use.stack.length ? make(first, 'details') : first;
    make(shown, use.stack.length ? 'summary' : 'span', {}, use.name);
    if (use.stack.length) make(shown, 'pre', {}, use.stack.join('\n'));
    for (const [, key] of columns.slice(1)) make(use.line, 'td', {}, key === 'allocations' ? use[key] : size(use[key]));
  }
  const headers = columns.map(([title, key]) => {
    const cell = make(head, 'th', { scope: 'col', 'aria-sort': key === 'peak' ? 'descending' : 'none' });
    make(cell, 'button', { type: 'button' }, title).addEventListener('click', () => {
      const up = cell.getAttribute('aria-sort') === 'descending' || (key === 'name' && cell.getAttribute('aria-sort') === 'none');
      for (const other of headers) other.setAttribute('aria-sort', 'none');
      cell.setAttribute('aria-sort', up ? 'ascending' : 'descending');
      device.uses.sort((a, b) => (key === 'name' ? a.name.localeCompare(b.name) : a[key] - b[key]) * (up ? 1 : -1));
      body.append(...device.uses.map(use => use.line));
    });
    return cell;
  });
}

for (const device of devices) {
  const section = make(document.querySelector('main'), 'section');
  make(section, 'h2', {}, device.name);
  const figures = make(section, 'dl', { class: 'figures' });
  for (const [name, value] of device.figures) {
    const box = make(figures, 'div');
    make(box, 'dt', {}, name);
    make(box, 'dd', {}, value);
  }
  make(section, 'h3', {}, 'Alive over time, by call site');
  if (device.times.length > 1) chart(section, device);
  else make(section, 'p', { class: 'dim' }, 'Nothing was recorded: start with nbrt.memory.record_memory_history().');
  make(section, 'h3', {}, 'Segments, in the order of their addresses');
  map(make(section, 'div', { class: 'map' }), device);
  make(section, 'h3', {}, 'Call sites, with the stacks that led there');
  table(section, device);
}
