// Unpacks plotly.js, which travels gzipped inside the page, and draws every figure in the reader's own mode.
(async () => {
  const read = (id) => document.getElementById(id).textContent;
  const packed = Uint8Array.from(atob(read("plotly")), (letter) => letter.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  const script = document.createElement("script");
  script.textContent = await new Response(stream).text();
  document.head.append(script);

  const { figures, templates, config } = JSON.parse(read("figures"));
  const mode = matchMedia("(prefers-color-scheme: dark)");
  const draw = () => {
    const dark = mode.matches;
    for (const [id, pair] of Object.entries(figures)) {
      const { data, layout } = dark ? pair.dark : pair.light;
      Plotly.react(id, data, { ...layout, template: dark ? templates.dark : templates.light }, config);
    }
  };
  draw();
  mode.addEventListener("change", draw);
  document.body.dataset.drawn = "yes";
})().catch((error) => {
  for (const each of document.querySelectorAll(".plot")) each.textContent = `This figure could not be drawn: ${error}`;
});
