"""SRAVEN in lm-evaluation-harness, with the real package where it is installed."""

import pytest

pytest.importorskip("datasets")

from hyla.integrations.lm_eval import FOLDER, sraven
from hyla.tasks.sraven import SravenConfig
from hyla.tasks.sraven.problem import Problems

METADATA = {"num_instances": 3, "num_features": 2, "num_values": 5, "version": 1.0}


def test_instances_are_those_of_the_splits():
    data = sraven.instances(**METADATA, split_seed=4, pretrained="a model's argument")
    assert data.keys() == {"train", "test", "ood"}
    config = SravenConfig(num_features=2, num_values=5)
    for split, questions in data.items():
        problems = Problems(config, split, seed=4)
        want = [str(list(problems[i].answer)) for i in range(3)]
        assert questions["answer"] == want
        assert all("Below is a 3 × 3 grid" in text for text in questions["question"])


@pytest.mark.filterwarnings("ignore:.*stay ambiguous")
def test_metadata_has_lists_where_the_config_has_tuples():
    rules = ["constant", "addition", "distribute_three"]
    data = sraven.instances(**METADATA, rules=rules, unambiguous=True)
    config = SravenConfig(num_features=2, num_values=5, rules=tuple(rules), unambiguous=True)
    assert data["ood"]["answer"][2] == str(list(Problems(config, "ood", seed=0)[2].answer))


def test_blanks_are_refused():
    with pytest.raises(ValueError, match="train_features leaves positions of train and test blank"):
        sraven.instances(num_instances=1, train_features=[2, 3])


def test_scores_are_of_the_last_panel():
    doc = {"answer": "[1, 2, 3, 4]", "scored": [True, True, True, False]}
    assert sraven.scores(doc, ["not [0, 0, 0, 0] but [1, 2, 3, 9]"]) == {
        "panel_right": 1.0,
        "integers_right": 1.0,
    }
    half = sraven.scores(doc, ["[1, 2, 0, 4]"])
    assert half == {"panel_right": 0.0, "integers_right": pytest.approx(2 / 3)}
    assert set(sraven.scores(doc, ["I do not know"]).values()) == {0.0}


# --- with the package -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def evaluate():
    """Run tasks of the folder on a model, as the command with --include_path does."""
    lm_eval = pytest.importorskip("lm_eval", exc_type=ImportError)
    from lm_eval.tasks import TaskManager  # pyright: ignore[reportMissingImports]

    def run(model, tasks: list[str], **options):
        manager = TaskManager(include_path=str(FOLDER), metadata=METADATA)
        options = {"limit": 2, "bootstrap_iters": 0, **options}
        done = lm_eval.simple_evaluate(model, tasks=tasks, task_manager=manager, **options)
        return {
            task: {name.removesuffix(",none"): value for name, value in result.items()}
            for task, result in done["results"].items()
        }

    return run


lm_eval_warnings = pytest.mark.filterwarnings("ignore")  # its own, and its libraries'


@lm_eval_warnings
def test_right_answers_score_one_and_others_none(evaluate):
    from lm_eval.api.model import LM  # pyright: ignore[reportMissingImports]

    class Oracle(LM):
        def generate_until(self, requests, disable_tqdm=False):
            answers = [request.doc["answer"] for request in requests]
            return [f"The panel is {answer}." for answer in answers[:-1]] + ["[0, 1"]

        def loglikelihood(self, requests):
            raise NotImplementedError

        loglikelihood_rolling = loglikelihood

    results = evaluate(Oracle(), ["sraven"])
    assert results.keys() == {"sraven_test", "sraven_ood"}
    scores = [one["panel_right"] for one in results.values()]
    assert sorted(scores) == [0.5, 1.0]  # of four replies the last is none


@lm_eval_warnings
def test_a_random_model_with_hyla_attention(evaluate):
    """The way of every model: tokens, `generate`, text, with two examples in front."""
    transformers = pytest.importorskip("transformers")
    from lm_eval.models.huggingface import HFLM  # pyright: ignore[reportMissingImports]
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    from hyla.integrations.transformers import register

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {letter: i for i, letter in enumerate(["<s>", *letters])}
    bytes_alone = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    bytes_alone.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bytes_alone.decoder = decoders.ByteLevel()
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=bytes_alone, eos_token="<s>", bos_token="<s>", pad_token="<s>"
    )
    register()
    config = transformers.LlamaConfig(
        vocab_size=len(vocabulary),
        hidden_size=8,
        intermediate_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=4096,
    )
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="hyla")
    lm = HFLM(pretrained=model, tokenizer=tokenizer, device="cpu", batch_size=1)
    results = evaluate(lm, ["sraven_ood"], num_fewshot=2, gen_kwargs="max_gen_toks=8")
    assert results["sraven_ood"]["panel_right"] == 0.0
    assert results["sraven_ood"]["sample_len"] == 2
