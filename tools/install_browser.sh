#!/usr/bin/env bash
# The Chromium that the tests of the web page drive. Debian's package as root, else playwright's own download; does nothing where
# one is there. Argument: the Python that has playwright.
set -eu
python=${1:-python3}
for program in chromium chromium-browser google-chrome google-chrome-stable; do
    if command -v "$program" >/dev/null; then exit 0; fi
done
if "$python" -c 'import os, playwright.sync_api as p
with p.sync_playwright() as found: raise SystemExit(not os.path.exists(found.chromium.executable_path))' 2>/dev/null; then exit 0; fi
if [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null; then
    echo "installing chromium"
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium >/dev/null
    exit 0
fi
"$python" -m playwright install chromium && exit 0
echo "the tests of the web page need Chromium: install the package chromium, or run: $python -m playwright install chromium" >&2
exit 1
