"""Loss and logits of ordinary inputs, and clear refusals of wrong ones."""

import pytest
import torch
import torch.nn.functional as F


def test_the_loss_is_the_weighted_mean_of_both_cross_entropies(tiny_model, tiny_batch):
    model = tiny_model(image_loss_weight=3.0)
    text, codes = tiny_batch()
    output = model(text, codes)
    places = torch.arange(text.shape[1])
    labels = torch.cat([torch.where(text == 0, 40 + places, text), codes + 46], dim=1)
    text_loss = F.cross_entropy(output.logits[:, :6].flatten(0, 1), labels[:, :6].flatten())
    image_loss = F.cross_entropy(output.logits[:, 6:].flatten(0, 1), labels[:, 6:].flatten())
    torch.testing.assert_close(output.text_loss, text_loss)
    torch.testing.assert_close(output.image_loss, image_loss)
    torch.testing.assert_close(output.loss, (text_loss + 3 * image_loss) / 4)
    assert (text == 0).any(), "the batch must hold a padding id"


def test_without_logits_the_losses_are_the_same(tiny_model, tiny_batch):
    model = tiny_model()
    fast, full = model(*tiny_batch(), return_logits=False), model(*tiny_batch())
    assert fast.logits is None and full.logits.shape == (3, 6 + 16, 40 + 6 + 24)
    assert fast.loss == full.loss and fast.image_loss == full.image_loss


def test_other_integer_types_give_the_same_result_and_stay_as_they_are(tiny_model, tiny_batch):
    model, (text, codes) = tiny_model(), tiny_batch()
    narrow = codes.to(torch.int16)
    assert model(text.to(torch.int32), narrow).loss == model(text, codes).loss
    assert narrow.dtype == torch.int16 and torch.equal(narrow.long(), codes)


def test_a_sample_does_not_depend_on_the_others_in_its_batch(tiny_model, tiny_batch):
    model, (text, codes) = tiny_model(), tiny_batch()
    alone = torch.cat([model(text[row : row + 1], codes[row : row + 1]).logits for row in range(3)])
    torch.testing.assert_close(model(text, codes).logits, alone, atol=1e-5, rtol=1e-5)


def test_bfloat16_weights_give_about_the_same_loss(tiny_model, tiny_batch):
    model = tiny_model()
    exact = model(*tiny_batch(), return_logits=False).loss
    rounded = model.to(torch.bfloat16)(*tiny_batch(), return_logits=False).loss
    assert rounded.item() == pytest.approx(exact.item(), rel=0.02)


def test_every_parameter_gets_a_gradient(tiny_model, tiny_batch):
    model = tiny_model()
    model(*tiny_batch(), return_logits=False).loss.backward()
    assert all(parameter.grad is not None and parameter.grad.any() for parameter in model.parameters())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text, codes: (text[:, :5], codes), r"input_ids has shape \(3, 5\).*expected \(batch, 6\).*processor"),
        (lambda text, codes: (text[0], codes), r"input_ids has shape \(6,\)"),
        (lambda text, codes: (text.float(), codes), "input_ids has shape .* dtype torch.float32, .*integers"),
        (lambda text, codes: (text + 40, codes), r"input_ids has values from \d+ to \d+, expected \[0, 40\)"),
        (lambda text, codes: (text, codes[:, :15]), r"image_codes has shape \(3, 15\).*expected \(batch, 16\).*codec"),
        (lambda text, codes: (text, codes - 1), r"image_codes has values from -1 to \d+, expected \[0, 24\).*codec"),
        (lambda text, codes: (text, codes + 24), r"image_codes has values from \d+ to \d+, expected \[0, 24\)"),
        (lambda text, codes: (text, codes[:2]), "input_ids has 3 rows and image_codes 2, expected one caption"),
        (lambda text, codes: (text, codes.to("meta")), "image_codes is on meta, expected the model's cpu.*to"),
        (lambda text, codes: (text.to("meta"), codes), "input_ids is on meta, expected the model's cpu.*to"),
    ],
)
def test_inputs_that_do_not_fit_are_refused(tiny_model, tiny_batch, change, message):
    text, codes = tiny_batch()
    codes[0, 0] = 0
    with pytest.raises(ValueError, match=message):
        tiny_model()(*change(text, codes))


def test_captions_that_do_not_fit_are_refused_before_generation(tiny_model, tiny_batch):
    with pytest.raises(ValueError, match=r"input_ids has shape \(3, 4\).*expected \(batch, 6\)"):
        tiny_model().generate_image_codes(tiny_batch()[0][:, :4])
