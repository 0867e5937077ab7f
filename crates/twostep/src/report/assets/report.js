'use strict';
// Toggles series, reads values under the pointer, hands out the data of figures. The page can be read without it.
(() => {
  const tip = document.getElementById('tip');
  const minus = s => s.replace(/-/g, '−');
  const show = v => {
    if (v === 0) return '0';
    const p = Math.floor(Math.log10(Math.abs(v)));
    return minus(p < -4 || p > 6 ? v.toExponential(3) : String(Number(v.toPrecision(4))));
  };
  const place = (text, event) => {
    tip.textContent = text;
    tip.classList.add('on');
    const box = tip.getBoundingClientRect(), gap = 14;
    const left = event.clientX + gap + box.width < innerWidth ? event.clientX + gap : event.clientX - gap - box.width;
    const top = event.clientY + gap + box.height < innerHeight ? event.clientY + gap : event.clientY - gap - box.height;
    tip.style.left = Math.max(4, Math.min(left, innerWidth - box.width - 4)) + 'px';
    tip.style.top = Math.max(4, top) + 'px';
  };
  const hide = () => tip.classList.remove('on');

  // A line's points, in the plot's own coordinates, read from its path once.
  const points = line => line.points_ ??= [...line.getAttribute('d').matchAll(/([ML])(-?[\d.]+) (-?[\d.]+)/g)]
    .map(m => ({ begins: m[1] === 'M', x: +m[2], y: +m[3] }));
  const height = (line, x) => {
    const all = points(line);
    for (let i = 1; i < all.length; i++) {
      const a = all[i - 1], b = all[i];
      if (!b.begins && (a.x - x) * (b.x - x) <= 0 && a.x !== b.x) return a.y + (b.y - a.y) * (x - a.x) / (b.x - a.x);
    }
    return null;
  };
  const axis = text => {
    const [low, high, log] = text.split(',').map(Number);
    return share => log ? low * Math.pow(high / low, share) : low + share * (high - low);
  };
  const read = (plot, event) => {
    const box = plot.viewBox.baseVal, matrix = plot.getScreenCTM();
    if (!plot.dataset.x || !matrix) return null;
    const at = new DOMPoint(event.clientX, event.clientY).matrixTransform(matrix.inverse());
    if (at.x < 0 || at.y < 0 || at.x > box.width || at.y > box.height) return null;
    const x = axis(plot.dataset.x), y = axis(plot.dataset.y);
    const name = (label, fallback) => label || fallback;
    const lines = [name(plot.dataset.xl, 'x') + ' ' + show(x(at.x / box.width))];
    let read = 0;
    for (const line of plot.querySelectorAll('.series:not(.off) > path.line')) {
      const found = height(line, at.x);
      if (found === null || read >= 8) continue;
      lines.push(line.parentNode.dataset.series + ' ' + show(y(1 - found / box.height)));
      read += 1;
    }
    if (!read) lines.push(name(plot.dataset.yl, 'y') + ' ' + show(y(1 - at.y / box.height)));
    return lines.join('\n');
  };
  document.addEventListener('pointermove', event => {
    const target = event.target instanceof Element ? event.target : null;
    const marked = target && target.closest('[data-tip]');
    if (marked) return place(marked.dataset.tip, event);
    const plot = target && target.closest('.panels svg') && [...target.closest('.panels svg').ownerSVGElement
      ? target.closest('.panels svg').ownerSVGElement.querySelectorAll('svg.plot')
      : target.closest('.panels svg').querySelectorAll('svg.plot')].find(p => {
        const box = p.getBoundingClientRect();
        return event.clientX >= box.left && event.clientX <= box.right && event.clientY >= box.top && event.clientY <= box.bottom;
      });
    const text = plot && read(plot, event);
    if (text) place(text, event); else hide();
  });
  document.addEventListener('pointerleave', hide);
  document.addEventListener('scroll', hide, { passive: true });

  document.addEventListener('click', event => {
    const key = event.target.closest('.key');
    if (key) {
      const on = key.getAttribute('aria-pressed') !== 'true';
      key.setAttribute('aria-pressed', on);
      for (const marks of key.closest('figure').querySelectorAll('.series'))
        if (marks.dataset.series === key.dataset.series) marks.classList.toggle('off', !on);
      return;
    }
    const data = event.target.closest('.tool[data-csv]');
    if (data) {
      const text = JSON.parse(document.getElementById(data.dataset.csv).textContent);
      const link = document.createElement('a');
      link.href = URL.createObjectURL(new Blob([text], { type: 'text/csv' }));
      link.download = data.dataset.file;
      link.click();
      setTimeout(() => URL.revokeObjectURL(link.href), 1000);
      return;
    }
    if (event.target.closest('#shade')) {
      const root = document.documentElement;
      const dark = root.dataset.shade ? root.dataset.shade === 'dark' : matchMedia('(prefers-color-scheme: dark)').matches;
      root.dataset.shade = dark ? 'light' : 'dark';
    }
  });
  // What a link leads to is opened, and everything before printing.
  const open = () => {
    const target = location.hash.length > 1 && document.getElementById(decodeURIComponent(location.hash.slice(1)));
    for (let node = target; node; node = node.parentElement) if (node.tagName === 'DETAILS') node.open = true;
    if (target) target.scrollIntoView();
  };
  addEventListener('hashchange', open);
  if (location.hash) open();
  addEventListener('beforeprint', () => document.querySelectorAll('details').forEach(node => { node.open = true; }));
})();
