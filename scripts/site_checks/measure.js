// Measures the page that the browser shows, and returns its faults. `limits` are those of checker.py.
async limits => {
  const article = document.querySelector('article') ?? document.body;
  const visible = element => element.checkVisibility({opacityProperty: true, visibilityProperty: true});
  const start = element => `${element.tagName}: ${element.textContent.replace(/\s+/g, ' ').trim().slice(0, 40)}`;
  const overflow = element => getComputedStyle(element).overflowX;
  const texts = function* (root) {
    const walker = document.createTreeWalker(root, NodeFilter.SHOW_TEXT);
    while (walker.nextNode()) if (walker.currentNode.data.trim()) yield walker.currentNode;
  };

  // Contrast and size of text.
  const luminance = ([r, g, b]) => [r, g, b].map(v => v / 255)
    .map(v => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const context = document.createElement('canvas').getContext('2d', {willReadFrequently: true});
  const known = new Map();
  const blend = colors => {  // the luminance of colours that are painted over each other
    const key = colors.join();
    if (!known.has(key)) {
      for (const color of colors) { context.fillStyle = color; context.fillRect(0, 0, 1, 1); }
      known.set(key, luminance([...context.getImageData(0, 0, 1, 1).data].slice(0, 3)));
    }
    return known.get(key);
  };
  const backgrounds = element => element
    ? [...backgrounds(element.parentElement), getComputedStyle(element).backgroundColor] : ['white'];
  const low = new Map(), small = new Map();
  for (const node of texts(document.body)) {
    const element = node.parentElement, text = node.data.trim().slice(0, 40);
    if (element.closest('svg, script, style, noscript') || !visible(element)) continue;
    const name = `${element.tagName}.${element.className}`;
    const behind = backgrounds(element), style = getComputedStyle(element);
    const [front, back] = [blend([...behind, style.color]), blend(behind)];
    const contrast = (Math.max(front, back) + 0.05) / (Math.min(front, back) + 0.05);
    if (contrast < limits.contrast) low.set(name, [contrast, name, text]);
    if (parseFloat(style.fontSize) < limits.text) small.set(name, [parseFloat(style.fontSize), name, text]);
  }

  // Elements that are cut, or wider than their box.
  const scrolls = element => element && element !== article
    && (['auto', 'scroll'].includes(overflow(element)) || scrolls(element.parentElement));
  const right = article.getBoundingClientRect().right + limits.outside;
  const content = [...article.querySelectorAll('*')].filter(visible);
  const wide = content.filter(element => element.getBoundingClientRect().right > right && !scrolls(element.parentElement));
  const cutting = limits.scroll ? ['hidden', 'clip'] : ['hidden', 'clip', 'auto', 'scroll'];
  const cut = content.filter(element => (element.tagName !== 'PRE' || !scrolls(element))
    && cutting.includes(overflow(element)) && element.scrollWidth > element.clientWidth + 1);

  // Pictures: a description, and text that is large enough as displayed.
  const drawing = async image => {  // an SVG picture as part of the page, so that its texts can be measured
    const parsed = new DOMParser().parseFromString(await (await fetch(image.src)).text(), 'image/svg+xml');
    const svg = document.adoptNode(parsed.documentElement);
    if (!svg.getAttribute('viewBox')) svg.setAttribute('viewBox', `0 0 ${image.naturalWidth} ${image.naturalHeight}`);
    svg.setAttribute('width', image.clientWidth);
    svg.setAttribute('height', image.clientHeight);
    const host = document.body.appendChild(document.createElement('div'));
    host.style = 'position: absolute; top: 0; left: 0; visibility: hidden';
    host.attachShadow({mode: 'open'}).append(svg);
    return {svg, host};
  };
  const pictures = [];
  for (const image of [...article.querySelectorAll('img')].filter(visible)) {
    const report = text => pictures.push(`${image.src.split('/').pop()} ${text}`);
    if (image.alt.trim().split(/\s+/).length < limits.words) report(`has the description ${JSON.stringify(image.alt)}`);
    if (!image.naturalWidth) { report('cannot be loaded'); continue; }
    let measured = false;
    if (new URL(image.src).pathname.endsWith('.svg')) {
      const {svg, host} = await drawing(image), frame = host.getBoundingClientRect();
      for (const node of texts(svg)) {
        const element = node.parentElement, text = node.data.trim().slice(0, 40);
        if (!element.closest('text')) continue;
        const matrix = element.getScreenCTM(), box = element.getBoundingClientRect();
        const size = parseFloat(getComputedStyle(element).fontSize)
          * Math.sqrt(Math.abs(matrix.a * matrix.d - matrix.b * matrix.c));
        measured = true;
        if (size < limits.picture_text) report(`has text of ${size.toFixed(1)} px: ${text}`);
        const outside = Math.max(frame.left - box.left, box.right - frame.right, frame.top - box.top, box.bottom - frame.bottom);
        if (outside > limits.outside) report(`cuts its text: ${text}`);
      }
      host.remove();
    }
    const scale = image.clientWidth / image.naturalWidth;
    if (!measured && scale < limits.scale) report(`is displayed at ${Math.round(scale * 100)}% of its size`);
  }
  return {
    low: [...low.values()], small: [...small.values()], pictures,
    wide: wide.map(start).slice(0, 3), cut: cut.map(start),
    scroll: document.documentElement.scrollWidth - innerWidth,
    links: [...document.querySelectorAll('a[href]')].map(a => a.href),
    ids: [...document.querySelectorAll('[id]')].map(e => e.id),
  };
}
