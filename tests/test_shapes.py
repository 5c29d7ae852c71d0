"""The shape annotations hold: beartype checks them here, in a process of its own, only in tests."""

import subprocess
import sys
import textwrap

HOOKED = """
    from jaxtyping import install_import_hook

    install_import_hook("hyla.attention", "beartype.beartype")
    install_import_hook("hyla.nn", "beartype.beartype")
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
        print("checked")
        """
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "checked"


def test_the_hook_does_check():
    done = run_hooked(
        """
        import torch
        from hyla.nn import rotary

        rotary(torch.randn(2, 3, 4))
        """
    )
    assert done.returncode != 0
    assert "TypeCheckError" in done.stderr
