"""The kernels as a package of the Hugging Face kernels format: what it may import, what it does."""

import ast
import copy
import importlib.util
import json
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from hyla.attention import attention

ROOT = Path(__file__).parents[2]
REPOSITORY = "somebody/hyla-attention"


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("kernels") / "hyla-attention"
    subprocess.run([sys.executable, ROOT / "tools/kernel_package.py", folder], check=True)
    return folder


@pytest.fixture(scope="module")
def package(folder):
    """Load the package as kernels does: from its path, under the name in its metadata."""
    variant = folder / "build" / "torch-cpu"
    name = json.loads((variant / "metadata.json").read_text())["id"]
    spec = importlib.util.spec_from_file_location(name, variant / "__init__.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def written(*arguments: Path) -> tuple[int, str]:
    command = [sys.executable, ROOT / "tools/kernel_package.py", *arguments]
    done = subprocess.run(command, capture_output=True, text=True)
    return done.returncode, done.stderr


def test_only_an_earlier_package_is_replaced(tmp_path):
    assert written()[0] == 2
    assert "usage:" in written()[1]
    (tmp_path / "empty").mkdir()
    assert written(tmp_path / "empty") == written(tmp_path / "empty") == (0, "")
    for place in ("precious", "empty/notes", "empty/build/notes"):
        (tmp_path / place).mkdir()
        (tmp_path / place / "README.md").write_text("mine")
        code, told = written(tmp_path / Path(place).parts[0])
        assert code == 2
        assert "holds other things than a package" in told
        assert (tmp_path / place / "README.md").read_text() == "mine"
        shutil.rmtree(tmp_path / place)


def test_each_variant_is_a_package_with_its_metadata(folder):
    variants = {path.name: path for path in (folder / "build").iterdir()}
    assert variants.keys() == {"torch-cpu", "torch-cuda"}
    for name, path in variants.items():
        metadata = json.loads((path / "metadata.json").read_text())
        backend = name.removeprefix("torch-")
        assert metadata["backend"] == {"type": backend}
        assert metadata["python-depends"] == []
        assert metadata["id"].startswith(f"_hyla_attention_{backend}_")
        assert (
            f'"{metadata["id"]}::fused_attention"'
            in (path / "attention" / "kernels" / "ops.py").read_text()
        )
        assert (path / "hyla_attention" / "__init__.py").exists()
        assert (path / "attention" / "kernels" / "cuda" / "decode.cu").exists()


def test_it_imports_torch_the_standard_library_and_itself_relatively(folder):
    for path in (folder / "build" / "torch-cuda").rglob("*.py"):
        tree = ast.parse(path.read_text(), feature_version=(3, 10))
        for node in ast.walk(tree):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                names = [node.module]
            for name in names:
                top = name.partition(".")[0]
                assert top == "torch" or top in sys.stdlib_module_names, f"{path}: {name}"


def test_it_computes_what_hyla_does_beside_it(package):
    q, k, v = torch.randn(3, 2, 5, 3, 4)
    for name in ("hyla", package.RECOMMENDED, "softmax"):
        torch.testing.assert_close(
            package.attention(q, k, v, attention=name, causal=True),
            attention(q, k, v, attention=name, causal=True),
        )
    assert package.attention.__module__ != attention.__module__
    assert package.explain(q, k, v).path == "reference"


@pytest.fixture
def layer():
    """An attention layer, of which only the flag and the config count."""
    module: Any = torch.nn.Module()
    module.is_causal = True
    module.config = SimpleNamespace(hyla_attention="hyla")
    return module


def test_causality_padding_and_groups_are_its_own_work(package, layer):
    """Heads before tokens, and padding [B, K] beside a flag, or masks of pairs [B, 1, Q, K]."""
    q, (k, v) = torch.randn(2, 4, 6, 8), torch.randn(2, 2, 2, 6, 8)
    padding = torch.ones(2, 6, dtype=torch.int64)
    padding[0, :2] = 0
    attend = package.flash_attn_forward
    got, weights = attend(layer, q, k, v, padding, scaling=0.3)
    groups = [x.repeat_interleave(2, dim=1).transpose(1, 2) for x in (k, v)]
    seen = padding[:, None, None].bool()
    want = attention(q.transpose(1, 2), *groups, causal=True, scale=0.3, mask=seen)
    assert weights is None
    torch.testing.assert_close(got, want)
    pairs = seen & torch.ones(6, 6, dtype=torch.bool).tril()
    torch.testing.assert_close(attend(layer, q, k, v, pairs, scaling=0.3)[0], want)
    one, _ = attend(layer, q[:, :, -1:], k, v, padding, scaling=0.3)  # decoding
    torch.testing.assert_close(one, want[:, -1:])
    causal = attention(q.transpose(1, 2), *groups, causal=True)
    torch.testing.assert_close(attend(layer, q, k, v)[0], causal)
    layer.is_causal = False
    torch.testing.assert_close(attend(layer, q, k, v)[0], attention(q.transpose(1, 2), *groups))


def test_the_config_names_the_member_of_the_family(package, layer):
    q = torch.randn(2, 4, 6, 8)
    x = q.transpose(1, 2)
    for name in ("linear", "hyla.silu"):
        layer.config.hyla_attention = name
        want = attention(x, x, x, attention=name, causal=True)
        torch.testing.assert_close(package.flash_attn_forward(layer, q, q, q)[0], want)
    del layer.config.hyla_attention
    want = attention(x, x, x, attention=package.RECOMMENDED, causal=True)
    torch.testing.assert_close(package.flash_attn_forward(layer, q, q, q)[0], want)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"attention_mask": torch.ones(2, 7)}, "a mask of padding must be"),
        ({"dropout": 0.1}, "cannot honour attention dropout"),
        ({"softcap": 30.0}, "cannot honour softcap"),
        ({"sliding_window": 4}, "asks for a sliding window of 4"),
        ({"position_ids": torch.tensor([[0, 1, 2, 0, 1, 2]])}, "cannot honour packed"),
        ({"s_aux": torch.ones(4)}, "cannot honour s_aux"),
        ({"key": torch.randn(2, 4, 9, 8)}, "cannot honour 6 queries before 9 keys"),
    ],
)
def test_what_it_would_have_to_ignore_is_refused(package, layer, arguments, message):
    q = torch.randn(2, 4, 6, 8)
    key = arguments.pop("key", q)
    with pytest.raises(ValueError, match=message):
        package.flash_attn_forward(layer, q, key, key, **arguments)


# --- with the package -----------------------------------------------------------------------------


def test_kernels_loads_it_from_a_folder(folder):
    kernels = pytest.importorskip("kernels")
    module = kernels.get_local_kernel(folder, backend="cpu")
    q, k, v = torch.randn(3, 2, 5, 3, 4)
    torch.testing.assert_close(module.attention(q, k, v), attention(q, k, v))


@pytest.mark.filterwarnings("ignore")  # its own
def test_a_model_of_transformers_attends_by_it(folder, monkeypatch):
    """As by `register()`, which makes every mask itself: padded on either side, and cached."""
    pytest.importorskip("kernels")
    transformers = pytest.importorskip("transformers")
    from hyla.integrations.transformers import register

    monkeypatch.setenv("LOCAL_KERNELS", f"{REPOSITORY}={folder}")
    register()
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2}
    sizes |= {"num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 50}
    torch.manual_seed(0)
    config = transformers.LlamaConfig(**sizes, hyla_attention="hyla")
    ours = transformers.LlamaForCausalLM(config).eval()
    models = [ours, copy.deepcopy(ours)]
    models[0].set_attn_implementation("hyla")
    models[1].set_attn_implementation(REPOSITORY, allow_all_kernels=True)
    assert models[1].config._attn_implementation == REPOSITORY
    tokens, masks = torch.randint(50, (2, 7)), torch.ones(2, 3, 7, dtype=torch.int64).unbind(1)
    masks[1][0, :3] = 0
    masks[2][1, 5:] = 0
    with torch.no_grad():
        for mask in masks:
            want, got = (model(tokens, attention_mask=mask).logits for model in models)
            shown = mask.bool()
            torch.testing.assert_close(got[shown], want[shown])
        want, got = (
            model.generate(
                tokens, attention_mask=masks[1], max_new_tokens=4, do_sample=False, pad_token_id=0
            )
            for model in models
        )
    assert torch.equal(got, want)
