"""The configuration that DeepSpeed gets, without DeepSpeed."""

import pytest

from core import ConfigurationError
from core_deepspeed import DeepSpeedOptions
from core_deepspeed.config import RunArguments, fit_to_run, merge


def config_of(given_config=None, **given):
    return merge(DeepSpeedOptions(config=given_config, **given), given.keys())


def refusal(given_config=None, **given):
    with pytest.raises(ConfigurationError) as caught:
        config_of(given_config, **given)
    return str(caught.value)


def fitted(given_config=None, *, run=None, **given):
    return fit_to_run(
        config_of(given_config, **given),
        RunArguments(**{"world_size": 2, "device_type": "cpu", **(run or {})}),
    )


def refusal_of_run(given_config=None, *, run=None, **given):
    with pytest.raises(ConfigurationError) as caught:
        fitted(given_config, run=run, **given)
    return str(caught.value)


class TestOptions:
    def test_any_optimizer_is_taken_unless_the_user_says_no(self):
        assert config_of()["zero_allow_untested_optimizer"] is True
        assert config_of()["zero_force_ds_cpu_optimizer"] is False
        assert (
            config_of({"zero_force_ds_cpu_optimizer": True})["zero_force_ds_cpu_optimizer"] is True
        )

    def test_an_option_of_what_is_off_is_refused(self):
        assert refusal(max_in_cpu=7) == (
            "max_in_cpu=7 has no effect without offload_parameters=True. Add that, or leave it out."
        )
        assert "block_size=1 has no effect without offload to 'nvme'" in refusal(
            offload_optimizer=True, block_size=1
        )
        assert "without offload_parameters=True or offload_optimizer=True" in refusal(
            pin_memory=True
        )

    def test_a_default_that_is_spelled_out_is_not(self):
        config_of(
            max_in_cpu=1_000_000_000, offload_parameters=False, nvme_path=None, block_size=1_048_576
        )


class TestConfigOfTheUser:
    def test_it_overrides_defaults(self):
        config = config_of(
            {
                "zero_optimization": {"stage": 3, "reduce_bucket_size": 5},
                "wall_clock_breakdown": True,
            }
        )
        assert config["zero_optimization"]["stage"] == 3
        assert config["zero_optimization"]["reduce_bucket_size"] == 5
        assert config["wall_clock_breakdown"] is True

    @pytest.mark.parametrize("own", [{}, {"gradient_clipping": 1.0}, {"zero_optimization": {}}])
    def test_one_that_names_no_stage_means_0_as_for_deepspeed(self, own, caplog):
        assert config_of(own)["zero_optimization"] == {"stage": 0}
        assert config_of(own, stage=2)["zero_optimization"]["stage"] == 2
        assert not caplog.records

    @pytest.mark.parametrize(
        "block", [{"reduce_bucket_size": 5}, {"reduce_bucket_size": 5, "stage": "auto"}]
    )
    def test_a_block_of_zero_that_names_none_is_told(self, block, caplog):
        assert config_of({"zero_optimization": block})["zero_optimization"] == {
            "reduce_bucket_size": 5,
            "stage": 0,
        }
        assert (
            "config has zero_optimization without a stage, which for DeepSpeed is stage 0"
            in caplog.text
        )

    def test_it_is_left_as_it_was(self):
        own = {"zero_optimization": {"stage": 3}}
        config_of(own)
        assert own == {"zero_optimization": {"stage": 3}}

    def test_auto_is_left_open(self):
        own = {
            "zero_optimization": {"stage": 3, "reduce_bucket_size": "auto"},
            "gradient_clipping": "auto",
        }
        assert config_of(own, reduce_bucket_size=7)["zero_optimization"]["reduce_bucket_size"] == 7

    def test_of_a_file(self, tmp_path):
        path = tmp_path / "zero.json"
        path.write_text('{"zero_optimization": {"stage": 1}}')
        assert config_of(path)["zero_optimization"]["stage"] == 1
        assert config_of(str(path))["zero_optimization"]["stage"] == 1

    def test_a_file_that_can_not_be_read(self, tmp_path):
        assert "can't be read: No such file or directory" in refusal(tmp_path / "absent.json")
        path = tmp_path / "zero.json"
        path.write_text("{")
        assert "is not a JSON file for DeepSpeed: Expecting property name" in refusal(path)
        path.write_text('{"fp16": {}, "fp16": {}}')
        assert "it has 'fp16' twice" in refusal(path)
        path.write_text("[1]")
        assert "expected DeepSpeed's config as a dict, or the path of a JSON file" in refusal(path)

    def test_against_an_option(self):
        assert refusal({"zero_optimization": {"stage": 3}}, stage=2) == (
            "config says zero_optimization.stage = 3, and stage=2. Leave one of them out, or make "
            "them agree."
        )
        own = {"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}}}
        assert "offload_optimizer.device = 'cpu', and offload_optimizer=False" in refusal(
            own, offload_optimizer=False
        )
        own["zero_optimization"]["offload_optimizer"]["device"] = "none"
        assert "offload_optimizer.device = 'none', and offload_optimizer=True" in refusal(
            own, offload_optimizer=True
        )

    def test_what_agrees_is_welcome(self):
        own = {"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}}}
        zero = config_of(own, stage=3, offload_optimizer=True)["zero_optimization"]
        assert zero["offload_optimizer"]["device"] == "cpu"

    def test_a_misspelled_key(self):
        assert refusal({"gradient_cliping": 1.0}) == (
            "config has 'gradient_cliping', which DeepSpeed would ignore without a word. Did you "
            "mean 'gradient_clipping'?"
        )
        assert config_of({"of_tomorrow": 1})["of_tomorrow"] == 1


class TestRefusals:
    @pytest.mark.parametrize("stage", [4, -1, True, "3", 2.5])
    def test_stages(self, stage):
        assert refusal(stage=stage) == f"stage={stage!r}: expected 0, 1, 2 or 3."

    def test_stage_0(self):
        assert "offload_optimizer with stage 0: DeepSpeed would keep" in refusal(
            stage=0, offload_optimizer=True
        )
        assert "read what stages 1 to 3 write" in refusal(stage=0, deepspeed_checkpoint="native")
        assert refusal({}, reduce_bucket_size=9) == (
            "reduce_bucket_size=9 has no effect without stage=1, 2 or 3. Add that, or leave it out."
        )
        assert (
            "precision='16-mixed' at stage 0: DeepSpeed doesn't scale the loss there"
            in refusal_of_run({"fp16": {"enabled": True}}, run={"precision": "16-mixed"})
        )
        sums = {"data_types": {"grad_accum_dtype": "fp32"}}
        assert "of precision='bf16-mixed' in 'bf16' only" in refusal_of_run(
            sums, run={"precision": "bf16-mixed"}
        )
        fitted(sums)

    @pytest.mark.parametrize("stage", [0, 1, 2])
    def test_parameters_below_stage_3(self, stage):
        assert f"offload_parameters with stage {stage}: parameters are whole" in refusal(
            stage=stage, offload_parameters=True
        )

    @pytest.mark.parametrize("stage", [1, 2])
    def test_nvme_below_stage_3(self, stage, tmp_path):
        offload = {
            "offload_optimizer": True,
            "offload_optimizer_device": "nvme",
            "nvme_path": tmp_path,
        }
        assert (
            f"'nvme' with stage {stage}: DeepSpeed takes it, and computes as with 'cpu'"
            in refusal(stage=stage, **offload)
        )

    def test_nvme_without_a_folder(self, tmp_path):
        offload = {"stage": 3, "offload_optimizer": True, "offload_optimizer_device": "nvme"}
        assert "Offloading to 'nvme' needs nvme_path" in refusal(**offload)
        absent = tmp_path / "absent"
        assert f"nvme_path={str(absent)!r} is not a folder on this machine" in refusal(
            **offload, nvme_path=absent
        )

    def test_a_device_that_there_is_not(self):
        assert refusal(offload_optimizer=True, offload_optimizer_device="disk") == (
            "offload_optimizer_device='disk': expected 'cpu' or 'nvme'."
        )

    def test_a_remote_device_without_offload(self):
        assert "Add stage=3, offload_parameters=True" in refusal(stage=3, remote_device="cpu")
        assert "remote_device='gpu': expected 'cpu', 'nvme' or None" in refusal(
            stage=3, remote_device="gpu"
        )
        config_of(stage=3, remote_device="cpu", offload_parameters=True)

    @pytest.mark.parametrize("name", ["partition_activations", "contiguous_memory_optimization"])
    def test_activations_that_are_cut(self, name):
        expected = f"{name}=True is for activations that model-parallel ranks have in common"
        assert expected in refusal(**{name: True})
        assert expected in refusal({"activation_checkpointing": {name: True}})

    @pytest.mark.parametrize(
        ("own", "said"),
        [
            (
                {"tensor_parallel": {"autotp_size": 2}},
                "tensor_parallel.autotp_size = 2: DeepSpeed's AutoTP, which",
            ),
            (
                {"expert_parallel": {"enabled": True}},
                "expert_parallel.enabled = True: DeepSpeed's AutoEP, which gives",
            ),
            (
                {"sequence_parallel_size": 2},
                "sequence_parallel_size = 2: DeepSpeed's Ulysses, which gives",
            ),
        ],
    )
    def test_ranks_with_other_layers(self, own, said):
        assert said in refusal(own)
        config_of(
            {
                "tensor_parallel": {"autotp_size": 0},
                "expert_parallel": {},
                "sequence_parallel_size": 1,
            }
        )


class TestRun:
    def test_its_arguments_are_written(self):
        config = fitted(
            run={
                "micro_batch_size": 8,
                "num_accumulated": 3,
                "max_norm": 0.5,
                "precision": "bf16-mixed",
            }
        )
        assert config["train_micro_batch_size_per_gpu"] == 8
        assert config["gradient_accumulation_steps"] == 3
        assert config["gradient_clipping"] == 0.5
        assert config["bf16"]["enabled"] is True

    def test_what_it_leaves_open_the_config_decides(self):
        own = {"gradient_clipping": 2.0, "train_batch_size": 12, "gradient_accumulation_steps": 3}
        config = fitted(own)
        assert config["gradient_clipping"] == 2.0
        assert config["train_micro_batch_size_per_gpu"] == 2

    def test_without_a_word_from_either(self):
        config = fitted()
        assert (
            config["train_micro_batch_size_per_gpu"] == config["gradient_accumulation_steps"] == 1
        )
        assert config["gradient_clipping"] == 0

    @pytest.mark.parametrize(
        ("own", "run", "both"),
        [
            (
                {"gradient_accumulation_steps": 4},
                {"num_accumulated": 2},
                "gradient_accumulation_steps = 4, and accumulate_grad_batches=2",
            ),
            (
                {"gradient_clipping": 1.0},
                {"max_norm": 0.5},
                "gradient_clipping = 1.0, and gradient_clip_val=0.5",
            ),
            (
                {"train_micro_batch_size_per_gpu": 4},
                {"micro_batch_size": 8},
                "train_micro_batch_size_per_gpu = 4, and the loader's batch_size=8",
            ),
            (
                {"train_batch_size": 10},
                {"micro_batch_size": 8, "num_accumulated": 2},
                "train_batch_size = 10, and 2 processes with 2 batches of 8 make 32",
            ),
            (
                {"train_batch_size": 5},
                {},
                "train_batch_size = 5, and 2 processes with 1 batches of 2 make 4",
            ),
            ({"bf16": {"enabled": True}}, {}, "bf16.enabled = True, and precision='32-true'"),
            ({"bfloat16": {"enabled": True}}, {}, "bf16.enabled = True, and precision='32-true'"),
            (
                {"fp16": {"enabled": True}},
                {"precision": "bf16-true"},
                "fp16.enabled = True, and precision='bf16-true'",
            ),
            (
                {"bf16": {"enabled": False}},
                {"precision": "bf16-mixed"},
                "bf16.enabled = False, and precision='bf16-mixed'",
            ),
        ],
    )
    def test_a_contradiction_shows_both(self, own, run, both):
        assert f"config says {both}. Leave one of them out" in refusal_of_run(own, run=run)

    def test_an_argument_that_was_left_out_is_to_be_written(self):
        assert refusal_of_run({"gradient_accumulation_steps": 4}, run={"num_accumulated": 1}) == (
            "config says gradient_accumulation_steps = 4, and accumulate_grad_batches is 1, its "
            "default. Write accumulate_grad_batches=4, or leave it out of config."
        )

    def test_autocast_takes_the_place_of_the_block_of_its_precision(self):
        own, mixed = {"torch_autocast": {"enabled": True}}, {"precision": "bf16-mixed"}
        config = fitted(own, run=mixed)
        assert (config["torch_autocast"], "bf16" in config) == (
            {"enabled": True, "dtype": "bfloat16"},
            False,
        )
        assert fitted({"torch_autocast": {"enabled": False}}, run=mixed)["bf16"] == {
            "enabled": True
        }
        assert fitted({**own, "bf16": {"enabled": False}}, run=mixed)["bf16"] == {"enabled": False}
        # Its gradients are in float32, those of the other block at stage 0 in bfloat16.
        sums = {"zero_optimization": {"stage": 0}, "data_types": {"grad_accum_dtype": "fp32"}}
        fitted({**own, **sums}, run=mixed)

    def test_autocast_in_another_format_or_beside_another_block(self):
        own, mixed = {"torch_autocast": {"enabled": True}}, {"precision": "bf16-mixed"}
        for precision in ("32-true", "bf16-true", "16-mixed", "16-true"):
            assert f"torch_autocast.enabled = True, and precision='{precision}'" in refusal_of_run(
                own, run={"precision": precision}
            )
        in_float16 = {"torch_autocast": {"enabled": True, "dtype": "float16"}}
        assert "torch_autocast.dtype = 'float16', and precision='bf16-mixed'" in refusal_of_run(
            in_float16, run=mixed
        )
        both = refusal_of_run({**own, "bf16": {"enabled": True}}, run=mixed)
        assert "bf16.enabled = True, and torch_autocast.enabled = True" in both

    def test_loss_scale(self):
        in_float16 = {"precision": "16-mixed"}
        assert fitted(loss_scale=128, run=in_float16)["fp16"] == {
            "loss_scale": 128,
            "enabled": True,
        }
        assert fitted(run=in_float16)["fp16"] == {"enabled": True}
        assert "loss_scale=128 has no effect with precision='32-true'" in refusal_of_run(
            loss_scale=128
        )

    def test_float64(self):
        assert "precision='64-true': DeepSpeed computes in '16-mixed'" in refusal_of_run(
            run={"precision": "64-true"}
        )

    def test_activations_of_a_cpu_on_the_cpu(self):
        assert "cpu_checkpointing=True on a CPU, where activations are already" in refusal_of_run(
            cpu_checkpointing=True
        )
        gpu = {"device_type": "cuda"}
        assert (
            fitted(cpu_checkpointing=True, run=gpu)["activation_checkpointing"]["cpu_checkpointing"]
            is True
        )

    def test_float32_parameters_on_nvme(self, tmp_path):
        offload = {
            "stage": 3,
            "offload_parameters": True,
            "offload_params_device": "nvme",
            "nvme_path": tmp_path,
        }
        assert "DeepSpeed stores them as bfloat16, without a word" in refusal_of_run(**offload)
        fitted(**offload, run={"precision": "bf16-true"})

    def test_the_merged_config_is_left_as_it_was(self):
        merged = config_of()
        fit_to_run(merged, RunArguments(world_size=1, device_type="cpu", precision="bf16-mixed"))
        assert merged == config_of()
