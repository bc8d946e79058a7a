// Before anything is drawn: light or dark, as chosen here or by the system.
const chosen = localStorage.getItem("orchestration-theme");
const dark = matchMedia("(prefers-color-scheme: dark)");
const apply = () => {
  const own = localStorage.getItem("orchestration-theme");
  document.documentElement.dataset.theme = own ?? (dark.matches ? "dark" : "light");
};
dark.addEventListener("change", apply);
document.documentElement.dataset.theme = chosen ?? (dark.matches ? "dark" : "light");
