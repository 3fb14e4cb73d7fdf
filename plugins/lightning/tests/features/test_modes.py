import pytest

pytestmark = pytest.mark.numbers


def test_hooks_that_set_the_mode_of_a_validation(lit):
    class Modes(lit.Net):
        def on_validation_model_zero_grad(self):
            self.seen.append("zero")
            super().on_validation_model_zero_grad()

        def on_validation_model_eval(self):
            self.seen.append("eval")
            super().on_validation_model_eval()

        def on_validation_model_train(self):
            self.seen.append("train")
            super().on_validation_model_train()

        def on_validation_start(self):
            self.seen.append(f"start {self.training}")

        def on_validation_end(self):
            self.seen.append(f"end {self.training}")

        def on_train_batch_start(self, batch, batch_idx):
            self.seen.append(f"{self.training}")

    net = Modes()
    lit.fit(net, max_epochs=1)
    assert " ".join(net.seen) == "True True True True zero eval start False end False train"


def test_a_batchnorm_that_stays_frozen(lit):
    class Frozen(lit.Net):
        def on_validation_model_train(self):
            self.train()
            self.layers[1].eval()

        def on_train_batch_start(self, batch, batch_idx):
            self.seen.append(self.layers[1].training)

    net = Frozen()
    lit.fit(net, num_sanity_val_steps=1)
    assert (net.seen, lit.total(net)) == ([False] * 8, 13.8616)


def test_hooks_that_set_the_mode_of_other_stages(lit):
    class Modes(lit.Net):
        def on_test_model_eval(self):
            self.seen.append("test eval")
            super().on_test_model_eval()

        def on_test_model_train(self):
            self.seen.append("test train")
            super().on_test_model_train()

        def on_predict_model_eval(self):
            self.seen.append("predict eval")
            super().on_predict_model_eval()

    net, trainer = Modes(), lit.make_trainer()
    trainer.test(net, lit.load(), verbose=False)
    trainer.predict(net, lit.load())
    assert (net.seen, net.training) == (["test eval", "test train", "predict eval"], True)
