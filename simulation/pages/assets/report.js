(() => {
  "use strict";
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const plots = [...document.querySelectorAll(".plot")].map((element) => ({
    element,
    text: document.getElementById(element.dataset.figure).textContent,
  }));
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const config = { responsive: true, displaylogo: false, displayModeBar: false };

  // Figures carry no colours: each trace names a role, and the style sheet knows what a role looks like.
  const themed = (text) => {
    const { data, layout } = JSON.parse(text);
    const ink = colour("--ink"), soft = colour("--soft"), grid = colour("--grid"), line = colour("--line");
    layout.font = { ...layout.font, family: getComputedStyle(document.body).fontFamily, size: 13, color: ink };
    layout.hoverlabel = { bgcolor: colour("--raised"), bordercolor: line, font: { color: ink } };
    for (const [key, axis] of Object.entries(layout)) {
      if (!/^[xy]axis\d*$/.test(key)) continue;
      Object.assign(axis, { gridcolor: grid, linecolor: line, tickcolor: line, tickfont: { color: soft } });
      if (axis.title) axis.title.font = { color: soft, size: 13 };
    }
    for (const shape of layout.shapes || []) shape.line = { ...shape.line, color: soft };
    for (const note of layout.annotations || []) Object.assign(note, { font: { color: ink, size: 13 }, x: 0, xanchor: "left" });
    for (const trace of data) {
      const tone = colour("--" + trace.meta.role.replace("_", "-"));
      trace.line = { ...trace.line, color: tone };
      trace.marker = { ...trace.marker, color: tone };
      if (trace.fill) trace.fillcolor = tone + "2e";
    }
    return [data, layout];
  };
  const draw = () => plots.forEach(({ element, text }) => Plotly.react(element, ...themed(text), config));

  draw();
  dark.addEventListener("change", draw);
})();
