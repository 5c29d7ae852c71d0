"""The shape annotations hold: beartype checks them here, in a process of its own, only in tests."""

import subprocess
import sys
import textwrap

HOOKED = """
    from jaxtyping import install_import_hook

    for part in ("attention", "nn", "tasks", "training", "latents"):
        install_import_hook(f"hyla.{part}", "beartype.beartype")
"""


def run_hooked(code: str) -> subprocess.CompletedProcess:
    source = textwrap.dedent(HOOKED) + textwrap.dedent(code)
    return subprocess.run([sys.executable, "-c", source], capture_output=True, text=True)


def test_annotations_hold_for_every_preset_and_a_transformer():
    done = run_hooked(
        """
        import torch
        from hyla.attention import PRESETS, attention
        from hyla.attention import hypernetwork
        from hyla.nn import MultiHeadAttention, Transformer, TransformerConfig

        for name in PRESETS:
            q, k, v = torch.randn(2, 3, 4, 2), torch.randn(2, 5, 4, 2), torch.randn(2, 5, 4, 3)
            weight = torch.randn(4, 3, 3) if name == "hyla_deep" else None
            options = {"attention": name, "value_weight": weight, "causal": True}
            attention(q, k, v, **options)
            _, code = attention(q, k, v, **options, return_code=True)
            layer = MultiHeadAttention(8, 4, v_dim=12, attention=name, rotary=True, dropout=0.1)
            layer(torch.randn(2, 3, 8), torch.randn(2, 5, 8)).sum().backward()

        codes = hypernetwork.pair_codes(code, torch.tensor([[0, 1, 2]]))
        hypernetwork.linear_value_network(codes, *layer.head_weights())
        hypernetwork.hidden_value_network(codes, *layer.head_weights())

        sizes = dict(sequence_length=6, embed_dim=8, qk_dim=8, v_dim=8, mlp_dim=16, num_heads=4)
        for feed_forward in ("gelu", "swiglu", "moe"):
            for positions in ("t5", "t5_bidirectional", "rotary"):
                model = Transformer(
                    TransformerConfig(
                        input_dim=5, output_dim=5, num_layers=2, causal=True, inputs="tokens",
                        feed_forward=feed_forward, positions=positions, **sizes,
                    )
                )
                ids = torch.randint(5, (2, 6))
                model(ids, details=True).logits.sum().backward()
                cache = model.new_cache(6)
                model(ids[:, :4], cache=cache)

        from hyla.nn import rotary
        from jaxtyping import TypeCheckError

        try:
            rotary(torch.randn(2, 3, 4))
        except TypeCheckError:  # what is wrong is found
            print("checked")
        """
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "checked"


def test_annotations_hold_from_a_task_to_the_codes_of_what_was_trained_on_it():
    done = run_hooked(
        """
        from hyla.latents import Swaps, record_codes
        from hyla.training import Population, config_from_tree, load_preset, merge

        for task_name in ("fuzzy", "sraven"):
            changes = {"members": {"seed": [0, 1]}}
            config = config_from_tree(merge(load_preset(task_name, "smoke"), changes))
            task = config.build_task()
            population = Population(
                task, config.model, config.members, total_steps=2, batch_size=8, device="cpu"
            )
            population.train(2)
            population.evaluate("ood", 16)
            population.branch_scales(4)
            study, model = task.study, population.member_model(0)
            specimens = study.sample(study.known, seed=0, instances=8)
            table = record_codes(model, specimens.inputs, pairs=next(iter(study.pairs.values())))
            assert len(table)
            Swaps(model, study, seed=0, instances=16, solved_only=False)
        print("checked")
        """
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "checked"
