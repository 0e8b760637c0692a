"""Print the README's commands: the first line of each block marked `sh` under "Install"."""

import re
import sys
from pathlib import Path

text = Path(sys.argv[1]).read_text(encoding="utf-8")
section = text.split("## Install", 1)[1].split("\n## ", 1)[0]
for block in re.findall(r"```sh\n(.*?)```", section, flags=re.DOTALL):
    print(" ".join(block.strip().splitlines()))
