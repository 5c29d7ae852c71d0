"""`hyla latents`, as it is typed."""

import subprocess
import sys

import pytest

from hyla.cli import main
from hyla.latents import read_codes
from hyla.results.origins import read_with_origins

TEXTS = ["the cat sat on the mat .", "the dog sat on the mat .", "the dog ran ."]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    root = tmp_path_factory.mktemp("runs")
    assert main(["train", "sraven", "--scale", "smoke", "--steps", "2", "--root", str(root)]) == 0
    (path,) = root.iterdir()
    return path


def test_figures_of_a_run(run, tmp_path, capsys):
    out = tmp_path / "out"
    figures = ["--figure", "decoding", "swaps"]
    code = main(["latents", str(run), *figures, "--instances", "64", "--out", str(out)])
    assert code == 0
    printed = capsys.readouterr().out
    heading = " ".join(printed.partition("Decoded")[2].split())  # lines are as wide as the table
    assert heading.startswith(
        "from unseen compositions of sraven (ood_unpermuted, pairs: row), at the layer with the "
        "best accuracy"
    )
    assert "0.000 is a result" in printed
    assert "permuted heads" in printed
    for name in ("decoding.csv", "swaps.csv", "analyses.csv", f"{run.name}/latents.html"):
        assert (out / name).is_file(), name
    assert (out / run.name / "decoding.png").is_file()
    assert (out / run.name / "swaps-ood_unpermuted.pdf").is_file()


@pytest.mark.parametrize("name", ["gpt2", "t5"])
def test_a_pretrained_model_from_a_folder(name, tmp_path, capsys):
    from tiny_pretrained import save_pretrained

    folder = save_pretrained(name, tmp_path / "model")
    out = tmp_path / "out"
    code = main(["latents", f"hf:{folder}", "--text", *TEXTS, "--out", str(out)])
    assert code == 0, capsys.readouterr().err
    table = read_codes(out / "model" / "codes.parquet")
    kinds = {"encoder", "decoder"} if name == "t5" else {"self"}
    assert set(table["kind"]) == kinds
    first = table.where(layer=0, instance=0, kind=sorted(kinds)[-1])
    assert first["token"].tolist()[:3] == ["the", "cat", "sat"]
    assert table.codes.shape[1] == 4
    for kind in kinds:
        for figure in ("embedding.png", "similarity.pdf", "distances.png", "latents.html"):
            assert (out / "model" / kind / figure).is_file(), (kind, figure)


def test_models_in_one_folder_keep_their_own(tmp_path):
    from tiny_pretrained import save_pretrained

    out = tmp_path / "out"
    models = [save_pretrained("gpt2", tmp_path / name) for name in ("first", "second")]
    for folder, texts in zip(models, (TEXTS, TEXTS[:2]), strict=True):
        assert main(["latents", f"hf:{folder}", "--text", *texts, "--out", str(out)]) == 0
    assert len(set(read_codes(out / "first" / "codes.parquet")["instance"])) == 3
    accounts = read_with_origins(out / "analyses.csv")
    assert [(row["model"], row["texts"], row["table"]) for row in accounts] == [
        (model, texts, table)
        for model, texts in (("first", 3), ("second", 2))
        for table in ("distances", "embedding", "similarity")
    ]
    assert {row["pairs"] for row in accounts} == {"self"}


def test_texts_without_such_pairs_are_refused(tmp_path, capsys):
    from tiny_pretrained import save_pretrained

    folder, out = save_pretrained("gpt2", tmp_path / "model"), str(tmp_path / "out")
    asked = ["latents", f"hf:{folder}", "--text", "the", "--pairs", "previous", "--out", out]
    assert main(asked) == 2
    assert "the texts have no pairs 'previous': give longer ones" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["llama", "gpt2", "bert"])
def test_a_model_without_its_tokenizer(name, tmp_path, capsys):
    """transformers makes do with an empty one for some architectures."""
    from tiny_pretrained import tiny_pretrained

    tiny_pretrained(name).save_pretrained(tmp_path / "model")
    folder, out = f"hf:{tmp_path / 'model'}", str(tmp_path / "out")
    assert main(["latents", folder, "--text", "the", "--out", out]) == 1
    said = capsys.readouterr().err
    assert "has no tokenizer that can be loaded: its files (tokenizer.json" in said
    assert "have to be beside the model" in said


def test_a_model_of_ours_from_a_folder(tmp_path, capsys):
    from hyla.integrations.transformers import HylaConfig, HylaForCausalLM
    from tiny_pretrained import save_pretrained

    folder, out = save_pretrained("gpt2", tmp_path / "model"), tmp_path / "out"
    config = HylaConfig(
        vocab_size=40,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=8,
        max_position_embeddings=16,
    )
    HylaForCausalLM(config).save_pretrained(folder)
    code = main(["latents", f"hf:{folder}", "--text", *TEXTS, "--out", str(out)])
    assert code == 0, capsys.readouterr().err
    assert read_codes(out / "model" / "codes.parquet").codes.shape[1] == 4


def test_a_model_saved_with_our_attention_loads_and_shows_its_codes(tmp_path):
    """In a process of its own, in which nobody has registered the name before."""
    import transformers

    from hyla.integrations.transformers import register
    from tiny_pretrained import save_pretrained

    register()
    folder = save_pretrained("gpt2", tmp_path / "model")
    config = transformers.GPT2Config(n_embd=16, n_layer=1, n_head=4, vocab_size=40)
    transformers.AutoModel.from_config(config, attn_implementation="hyla").save_pretrained(folder)
    command = ["-m", "hyla", "latents", f"hf:{folder}", "--text", *TEXTS, "--out", str(tmp_path)]
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    codes = read_codes(tmp_path / "model" / "codes.parquet").codes
    assert codes.min() < 0  # RMSHead's, not softmax's


def test_of_a_folder_those_runs_that_can_be_looked_into(run, tmp_path, capsys):
    empty = run.parent / "sraven-without-checkpoint"
    empty.mkdir()
    (empty / "config.json").write_bytes((run / "config.json").read_bytes())
    options = ["--figure", "mean_codes", "--instances", "64", "--out", str(tmp_path)]
    try:
        assert main(["latents", str(run.parent), *options]) == 0
    finally:
        (empty / "config.json").unlink()
        empty.rmdir()
    assert "left out:" in capsys.readouterr().out
    assert [path.parent.name for path in tmp_path.glob("*/latents.html")] == [run.name]


def test_runs_of_a_task_without_a_study_are_left_out_of_a_folder(run, tmp_path, capsys):
    recall = ["train", "recall", "--scale", "smoke", "--steps", "2", "--root", str(tmp_path / "a")]
    assert main(recall) == 0
    out = ["--figure", "mean_codes", "--instances", "64", "--out", str(tmp_path / "out")]
    capsys.readouterr()
    assert main(["latents", str(tmp_path / "a"), str(run), *out]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "left out:" in told
    assert "there is no study of" in told
    assert [path.parent.name for path in tmp_path.glob("out/*/latents.html")] == [run.name]
    assert main(["latents", str(tmp_path / "a"), *out]) == 2
    assert "there is no study of" in " ".join(capsys.readouterr().err.split())


def test_a_text_whose_tokens_are_all_different_has_a_map_alone(tmp_path):
    from tiny_pretrained import save_pretrained

    folder, out = save_pretrained("gpt2", tmp_path / "model"), tmp_path / "out"
    assert main(["latents", f"hf:{folder}", "--text", "the cat sat on", "--out", str(out)]) == 0
    assert sorted(path.name for path in (out / "model" / "self").glob("*.png")) == ["embedding.png"]


@pytest.mark.parametrize(
    ("arguments", "exit_code", "message"),
    [
        (["latents", "{tmp}/nothing"], 2, "there is no run"),
        (["latents", "{run}", "--figure", "swps"], 2, "did you mean 'swaps'"),
        (["latents", "{run}", "--pairs", "rows"], 2, "did you mean 'row'"),
        (["latents", "{run}", "--member", "3"], 2, "there is no member 3"),
        (["latents", "{run}", "--text", "hello"], 2, "--text is for pretrained models"),
        (["latents", "{run}", "--max-tokens", "9"], 2, "--max-tokens is for pretrained models"),
        (["latents", "hf:{tmp}", "--instances", "5"], 2, "--instances is for trained runs"),
        (["latents", "hf:{tmp}", "--figure", "decoding"], 2, "--figure is for trained runs"),
        (["latents", "hf:{tmp}", "--member", "0"], 2, "--member is for trained runs"),
        (["latents", "hf:{tmp}/nothing", "--text", "hello"], 1, "does not exist"),
        (["latents", "hf:{tmp}", "--text", "hello"], 1, "holds no config.json"),
        (["latents", "hf:{tmp}"], 2, "say what the model is to read"),
        (["latents", "hf:{tmp}", "--text-file", "{tmp}/no.txt"], 2, "cannot be read"),
        (["latents", "hf:a", "hf:b", "--text", "hello"], 2, "one pretrained model at a time"),
    ],
)
def test_errors_are_explained(arguments, exit_code, message, run, tmp_path, capsys):
    given = [argument.format(run=run, tmp=tmp_path) for argument in arguments]
    assert main([*given, "--out", str(tmp_path / "out")]) == exit_code
    assert message in capsys.readouterr().err


def test_without_a_network_the_hub_is_not_blamed_on_the_user(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    out = str(tmp_path / "out")
    assert main(["latents", "hf:nobody/no-such-model", "--text", "hello", "--out", out]) == 1
    said = capsys.readouterr().err
    assert said.startswith("nobody/no-such-model is no folder here: asking the Hugging Face hub")
    assert "Without a network" in said


def test_unsupported_models_are_refused(tmp_path, capsys):
    import transformers

    from tiny_pretrained import save_pretrained

    folder = save_pretrained("gpt2", tmp_path / "model")
    config = transformers.BloomConfig(hidden_size=8, n_layer=1, n_head=2, vocab_size=40)
    transformers.BloomModel(config).save_pretrained(folder)
    out = str(tmp_path / "out")
    assert main(["latents", f"hf:{folder}", "--text", *TEXTS, "--out", out]) == 1
    assert "without transformers' AttentionInterface" in capsys.readouterr().err
