(() => {
  const find = (id) => document.getElementById(id);
  const source = find("readings");
  if (!source) return;
  const { tokens, models, first, bits, steps } = JSON.parse(source.textContent);
  const [one, other, text, panel, scale] = ["one", "other", "tokens", "token", "scale"].map(find);
  const add = (parent, kind, content = "", cls = "") => {
    const made = parent.appendChild(document.createElement(kind));
    made.textContent = content;
    if (cls) made.className = cls;
    return made;
  };
  const option = (select, value, label) => { add(select, "option", label).value = value; };
  models.forEach(([title], number) => { option(one, number, title); });
  option(other, -1, "no other");
  models.forEach(([title], number) => { option(other, number, title); });
  const spans = tokens.map((token) => add(text, "i", token));
  const high = Math.max(...models.flatMap(([, values]) => values.map((value) => value ?? 0)), 1);
  let at = 0;

  const level = (place) => {
    const a = models[one.value][1][place] ?? Infinity;
    if (other.value < 0) return "u" + Math.min(8, Math.floor(a / bits));
    const gap = (models[other.value][1][place] ?? Infinity) - a;
    const strength = steps.filter((step) => Math.abs(gap) >= step).length;
    return strength ? (gap > 0 ? "p" : "m") + strength : "u0";
  };
  const color = () => {
    spans.forEach((span, place) => { span.className = level(place) + (place === at ? " on" : ""); });
    scale.replaceChildren();
    const swatches = other.value < 0 ? [..."012345678"].map((n) => "u" + n)
      : ["m4", "m3", "m2", "m1", "u0", "p1", "p2", "p3", "p4"];
    const name = (select) => models[select.value][0];
    add(scale, "span", other.value < 0 ? "0 bits" : name(other) + " better by 4 bits");
    const strip = add(scale, "div");
    swatches.forEach((swatch) => add(strip, "i", "", swatch));
    add(scale, "span", other.value < 0 ? "12 and more" : name(one) + " better by 4 bits");
  };
  const chance = (value) => {
    if (value === null) return "impossible";
    const odds = 2 ** value;
    if (odds < 1.95) return (100 / odds).toFixed(0) + " %";
    if (odds < 10) return "1 in " + odds.toFixed(1);
    const large = { notation: "compact", compactDisplay: "long", maximumSignificantDigits: 2 };
    return "1 in " + Math.round(odds).toLocaleString("en", odds < 1e6 ? {} : large);
  };
  const show = (place) => {
    spans[at].classList.remove("on");
    at = Math.max(0, Math.min(spans.length - 1, place));
    spans[at].classList.add("on");
    panel.replaceChildren();
    add(panel, "h3", "“" + tokens[at].trim() + "”, as each model expected it");
    models.forEach(([title, values]) => {
      const row = add(panel, "div", "", "row");
      add(row, "span", title).title = title;
      add(add(row, "span"), "div", "", "bar").style.width = 100 * Math.min(1, (values[at] ?? high) / high) + "%";
      add(row, "span", chance(values[at]));
    });
  };
  const pick = (event) => { const place = spans.indexOf(event.target); if (place >= 0) show(place); };
  text.addEventListener("pointerover", pick);
  text.addEventListener("click", pick);
  text.addEventListener("keydown", ({ key }) => {
    if (key === "ArrowRight") show(at + 1);
    if (key === "ArrowLeft") show(at - 1);
  });
  [one, other].forEach((select, number) => { select.value = first[number]; select.addEventListener("change", color); });
  const surprising = models[first[0]][1].map((value, place) => [value ?? 0, place]).sort((a, b) => b[0] - a[0])[0];
  color();
  show(surprising ? surprising[1] : 0);
  find("reader").hidden = false;
  find("fixed").hidden = true;
})();
