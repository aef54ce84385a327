"""The software bill of materials of the files in the wheel that others wrote, made of their manifest."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
VENDOR = ROOT / "src" / "ramet" / "web" / "static" / "vendor"
SBOM = VENDOR / "vendored.cdx.json"


def create_sbom() -> str:
    """Return the document, in the format of CycloneDX 1.6: one component a package, with the hashes of its files."""
    packages: dict[tuple[str, str], list[tuple[str, dict[str, str]]]] = {}
    for name, file in sorted(tomllib.loads((VENDOR / "VENDORED.toml").read_text()).items()):
        packages.setdefault((file["package"], file["version"]), []).append((name, file))
    components = [
        {
            "type": "library",
            "bom-ref": f"pkg:npm/{package}@{version}",
            "name": package,
            "version": version,
            "purl": f"pkg:npm/{package}@{version}",
            "licenses": [{"license": {"id": files[0][1]["licence"]}}],
            "components": [
                {
                    "type": "file",
                    "name": f"ramet/web/static/vendor/{name}",
                    "hashes": [{"alg": "SHA-256", "content": file["sha256"]}],
                }
                for name, file in files
            ],
        }
        for (package, version), files in sorted(packages.items())
    ]
    document = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": {"type": "library", "name": "ramet", "bom-ref": "ramet"}},
        "components": components,
        "dependencies": [{"ref": "ramet", "dependsOn": [each["bom-ref"] for each in components]}],
    }
    return json.dumps(document, indent=2) + "\n"
