# rl4co
from rl4co.envs import TSPEnv
from rl4co.models import REINFORCE, AttentionModelPolicy
from rl4co.utils import RL4COTrainer

env = TSPEnv(generator_params={"num_loc": 5})
policy = AttentionModelPolicy(
    env_name=env.name, num_encoder_layers=1, embed_dim=16, num_heads=2, feedforward_hidden=16
)
model = REINFORCE(
    env,
    policy,
    baseline="rollout",
    batch_size=8,
    train_data_size=32,
    val_data_size=16,
    test_data_size=16,
    optimizer_kwargs={"lr": 1e-3},
)
trainer = RL4COTrainer(
    max_epochs=2, accelerator="cpu", devices=1, logger=None, enable_progress_bar=False
)
trainer.fit(model)
trainer.test(model)
