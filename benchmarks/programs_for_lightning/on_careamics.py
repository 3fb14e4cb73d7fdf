# careamics
import numpy as np
from careamics import CAREamist
from careamics.config import create_n2v_configuration

image = np.random.default_rng(0).normal(size=(64, 64)).astype("float32")
config = create_n2v_configuration(
    experiment_name="noise",
    data_type="array",
    axes="YX",
    patch_size=[16, 16],
    batch_size=4,
    num_epochs=2,
)
careamist = CAREamist(source=config)
careamist.train(train_source=image, val_source=image)
