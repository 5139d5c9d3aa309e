"""The corpus: scripts with one planted fault each, and clean ones; how one is run, and what became of it.

A faulty script is named after its pitfall, and marks the line that should be reported with `# <- here`. Those in
`fresh` were written after the detectors were frozen; what the frozen ones missed is kept in `MISSED_AT_FIRST`.

Those in `second_hand`, `third_hand` and `sixth_hand` to `thirteenth_hand` were written by somebody who had read no detector, those in `fourth_hand` and `fifth_hand` by the
writer of the detectors from reports of users. They are named after what they train; `expected.json` says which pitfalls name the fault, and
`SHA256SUMS` was written down before a detector saw them.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import distributed

from snugfit.doctor.findings import Finding
from snugfit.doctor.observe import observe
from snugfit.doctor.observe.child import watch_script
from snugfit.doctor.observe.detect import diagnose
from snugfit.doctor.observe.events.log import Log

HERE = Path(__file__).resolve().parent
(
    SECOND_HAND,
    THIRD_HAND,
    FOURTH_HAND,
    FIFTH_HAND,
    SIXTH_HAND,
    SEVENTH_HAND,
    EIGHTH_HAND,
    NINTH_HAND,
    TENTH_HAND,
    ELEVENTH_HAND,
    TWELFTH_HAND,
    THIRTEENTH_HAND,
) = (
    HERE / f"{name}_hand"
    for name in (
        "second",
        "third",
        "fourth",
        "fifth",
        "sixth",
        "seventh",
        "eighth",
        "ninth",
        "tenth",
        "eleventh",
        "twelfth",
        "thirteenth",
    )
)
MARK = "# <- here"
_FORKS_OR_MEETS = re.compile(r"\bnum_workers=(?!0\b)|\bmp\.spawn\(|\binit_process_group\(")

MISSED_AT_FIRST = {
    "averaged_not_saved_2": "an average that load_state_dict puts in looked like a checkpoint that is restored",
    "clip_before_unscale_3": "gradients are scaled by hand, not by torch.nn.utils",
    "imbalance_2": "labels of a binary loss were not counted",
    "not_in_optimizer_3": "parameters in a plain list are in no named_parameters()",
    "starving_2": "a new iterator has only a first batch, whose wait was taken for the start of the workers",
    "train_mode_4": "scored by a threshold: neither a loader, a loss nor an argmax shows that this is an evaluation",
}
"""Faults of `fresh` that the frozen detectors did not find, and why."""

ELSEWHERE_BY_THIRD_HAND = (
    "encoder_without_graph",
    "epoch_never_set",
    "linear_schedule_of_epochs",
    "one_block_many_times",
    "ppo_old_probabilities_are_new",
    "second_loss_overwrites",
)
"""Faults of `third_hand` that the detectors as they were found at another line; `one_block_many_times` as worth a look."""

AT_ANOTHER_LINE = {
    "random_validation_1": "reported where the rows are augmented, not where they are scored",
    "clip_before_unscale_3": "reported where the scaler unscales what was changed; what changed it is not watched",
    "eval_and_never_back": "reported where eval() switches the model, not where it then trains",
    "last_window_3": "reported where the optimizer steps, which it does too rarely",
    "special_tokens_2": "reported where forward() calls the embedding, not where the script calls the model",
    "gcn_citations": "reported where forward() takes the softmax over the nodes, not where the loss gets it",
    "vit_patches": "reported where forward() takes the softmax, not where the loss takes it again",
    "folder_order": "reported where the loss gets the rows, not where the loader hands them out",
    "gradual_unfreeze_head_only": "reported where the optimizer is made, not where it steps",
    **dict.fromkeys(
        (each for each in ELSEWHERE_BY_THIRD_HAND if each != "encoder_without_graph"), "as at first"
    ),
    "triplets_through_numpy": "reported on the line within the statement, not where that ends",
    "spectral_critic_scored_first": "reported where the statement begins, not where it ends",
    "critic_stays_frozen": "reported where the optimizer is made, not where its parameters are frozen",
    "heads_by_view": "reported where the statement begins, not where it ends",
    "mixup_two_orders": "reported where the loss gets what was mixed, not where it is mixed",
    "mask_after_softmax": "reported where the weights are multiplied, not where they are masked",
    "scheduler_for_optimizer": "reported where the optimizer is made, not where it is left out",
    "teacher_distils_itself": "reported where the divergence is added, not where it is computed",
    "bce_after_sigmoid": "reported where forward() takes the sigmoid, not where the loss takes it again",
    "dqn_targets": "reported where the targets are computed, not where the loss gets them",
    "log_of_zero": "reported where the logarithm is taken, not where it is differentiated",
    "policy_gradient_corridor": "reported where forward() takes the softmax, not where it is taken again",
    "prices_notebook": "reported where the targets are made, not where the loss gets them",
    "range_test_kept": "reported where the test of the rate is run, not where the training's optimizer is made",
    "unet_cells": "reported where the data set makes floats of bytes, not where the model gets them",
    "seq_tagging_wrong_axis": "reported where the argmax is taken, not where its result is compared",
}
"""Faults that are found, and reported at another line than the marked one."""


MISSED_OF_SECOND_HAND = {
    "bce_after_sigmoid": "the sigmoids of several heads are joined by cat, behind which nothing was looked for",
    "digits_one_transform": "no such check",
    "distil_running_loss": "no such check",
    "dqn_targets": "no such check",
    "gcn_citations": "the axis of a softmax was not looked at",
    "lstm_forecast": "rates were looked at in recipes alone",
    "mean_of_batch_means": "no such check",
    "mingpt_chars": "from the ninth update on labels were compared with tokens of the eighth",
    "policy_gradient_corridor": "what torch.distributions is given was not looked at",
    "prices_notebook": "no such check",
    "range_test_kept": "no such check",
    "resumed_schedule": "no such check",
    "resumed_without_moments": "no such check",
    "segmentation_reshaped": "no such check",
    "seq_tagging_wrong_axis": "no such check",
    "tabular_statistics_once": "inputs of evaluations were not looked at",
    "transformer_hot_adam": "rates were looked at in recipes alone",
}
"""Faults of `second_hand` that the detectors as they were did not find at all, and why."""

ELSEWHERE_AT_FIRST = (
    "folder_order",
    "gan_two_moons",
    "gradual_unfreeze_head_only",
    "hf_trainer_custom_loss",
    "oversampled_before_split",
)
"""Faults of `second_hand` that were found at first, at a line that is not marked."""

FOUND_BY_THIRD_HAND = (
    "cifar_like_no_clear",
    "clipped_before_backward",
    "ddp_through_module",
    "nll_of_raw_scores",
    "optimizer_of_old_parameters",
    "root_of_zero_distance",
    "scaled_gradients_stepped",
    "trainer_loss_unshifted",
    "validated_on_training_rows",
)
"""Faults of `third_hand` that the detectors as they were found at a marked line; the last as worth a look."""

MENDED_OF_THIRD_HAND = (
    "accelerate_divides_twice",
    "advantage_keeps_graph",
    "attention_dropout_always",
    "best_is_a_reference",
    "cleared_in_each_micro_batch",
    "divided_by_255_twice",
    "encoder_sees_the_future",
    "frozen_classifier",
    "functional_dropout_always",
    "generator_keeps_critics_gradient",
    "initialised_after_loading",
    "kl_of_probabilities",
    "label_among_columns",
    "lambda_returns_the_rate",
    "loss_over_test_nodes",
    "lstm_over_the_rows",
    "module_has_no_requires_grad",
    "optimizer_built_each_epoch",
    "padding_mask_inverted",
    "plateau_of_accuracy",
    "require_grad_misspelt",
    "seeded_in_every_epoch",
    "spectral_critic_scored_first",
    "stages_frozen_in_train_only",
    "swa_without_update_bn",
    "target_network_is_the_network",
    "weights_of_rows_broadcast",
    "window_holds_its_target",
    "workers_draw_alike",
)
"""Faults of `third_hand` that were missed at first, and that a check written for them finds."""

FOUND_OF_FOURTH_HAND = (
    "adapters_under_recompute",
    "decoder_gets_its_labels",
    "rate_moves_twice",
    "triplets_through_numpy",
    "updates_rounded_up",
)
"""Faults of `fourth_hand` that the detectors as they were found at a marked line; no other one was named at all."""

MENDED_OF_FOURTH_HAND = (
    "average_by_other_names",
    "average_left_in",
    "classes_count_from_one",
    "critic_stays_frozen",
    "ctc_of_raw_scores",
    "frames_by_view",
    "heads_by_view",
    "kl_sums_over_all",
    "loss_of_the_last_batch",
    "mixup_two_orders",
    "pairs_of_nought_and_one",
    "scored_on_training",
    "state_of_other_rows",
    "step_rate_each_batch",
    "teacher_norms_stand_still",
    "tested_without_eval",
    "truths_of_plus_and_minus",
    "zipped_loaders",
)
"""Faults of `fourth_hand` that were missed at first, and that a check written for them finds."""

NO_CHECK_OF_FOURTH_HAND = {
    "done_one_step_late": "the flags are numbers of Python in a list: no operation of torch sees which of them a return is cut at",
    "kl_over_pixels": "no fault in its effect: a mean over rows and pixels, and a sum that is divided by both, are the bound divided by the pixels",
}
"""Faults of `fourth_hand` that no general check can find, and why."""

ALARM_OF_FOURTH_HAND = "decoder_starts_with_a_token"
"""The clean script of `fourth_hand` on which something certain was found at first: the embedding of the source was taken for that of the target."""

FOUND_OF_FIFTH_HAND = ("gamma_of_zero", "scheduler_for_optimizer", "stepped_twice")
"""Faults of `fifth_hand` that the detectors as they were found, the second one at a line that is not marked."""

MENDED_OF_FIFTH_HAND = (
    "auxiliary_left_out",
    "best_never_updated",
    "dice_of_raw_scores",
    "image_flipped_mask_not",
    "last_of_padding",
    "mask_after_softmax",
    "norm_frozen_once",
    "own_row_is_a_negative",
    "penalty_without_graph",
    "sampler_of_classes",
    "scaled_before_split",
    "teacher_distils_itself",
    "validation_by_training_length",
    "wgan_parenthesis",
)
"""Faults of `fifth_hand` that were missed at first, and that a check written for them finds."""

OTHERWISE_NAMED = {
    "target_loads_itself": "best_not_copied: the line is right, and so is what is said; the name that was expected is another one"
}
"""Faults of `fifth_hand` that were found at first, under a name that `expected.json` does not have."""

FOUND_OF_SIXTH_HAND = (
    "balance_a2c",
    "birdsong_bags",
    "chat_answers",
    "churn",
    "cleaner_speech",
    "coauthors",
    "credit_range",
    "dates",
    "dialog_turns",
    "faces_margin",
    "fashion",
    "film_ratings",
    "galaxies",
    "grid_load",
    "long_texts",
    "masked_spectra",
    "patches_tuned",
    "slots_intents",
    "small_stories",
    "swirl_noise",
    "wearables",
    "wide_resume",
)
"""Faults of `sixth_hand` that the frozen detectors found at a marked line."""

ELSEWHERE_OF_SIXTH_HAND = (
    "conv_vae",
    "focal_trainer",
    "headlines",
    "house_tasks",
    "melodies",
    "voices",
    "weighted_reviews",
)
"""Faults of `sixth_hand` that they found at a line that is not marked."""

MISSED_OF_SIXTH_HAND = (
    "alloys",
    "irises",
    "leaf_stages",
    "nuclei",
    "paraphrases",
    "two_crops",
    "two_ranks",
    "flowers",
    "ranks_added",
    "rates_by_accelerate",
)
"""Faults of `sixth_hand` that they missed, or found as worth a look alone."""

FOUND_OF_SEVENTH_HAND = (
    "answers_2",
    "birds_2",
    "birds_3",
    "boxes_1",
    "boxes_2",
    "cells_2",
    "corridor_ppo_1",
    "ddp_rain_1",
    "ddp_rain_2",
    "keywords_2",
    "load_1",
    "loans_1",
    "mini_lm_2",
    "moods_peft_1",
    "numerals_2",
    "pendulum_1",
    "pendulum_2",
    "reviews_2",
    "seasons_cycle_1",
    "shapes_vae_1",
    "shapes_vae_2",
    "sounds_2",
    "sounds_3",
    "spiral_ddpm_2",
    "stars_1",
    "tides_1",
    "tides_2",
)
"""Faults of `seventh_hand` that the detectors as they were found at a marked line."""

ELSEWHERE_OF_SEVENTH_HAND = (
    "birds_4",
    "captions_clip_1",
    "cells_1",
    "leaves_1",
    "mini_lm_3",
    "papers_gcn_1",
    "questions_1",
    "reviews_1",
    "rings_gan_1",
    "stars_2",
)
"""Faults of `seventh_hand` that they found at a line that is not marked."""

MISSED_OF_SEVENTH_HAND = (
    "answers_1",
    "birds_1",
    "distil_digits_1",
    "distil_digits_2",
    "loans_2",
    "loans_3",
    "mini_lm_1",
    "numerals_1",
    "papers_gcn_2",
    "patches_moco_1",
    "ratings_1",
    "ratings_2",
    "sounds_1",
    "spiral_ddpm_1",
    "keywords_1",
)
"""Faults of `seventh_hand` that they missed, or found as worth a look alone."""

FOUND_OF_EIGHTH_HAND = (
    "blobs_vae_1",
    "census_heads_1",
    "census_heads_2",
    "chars_rnn_1",
    "credit_sheet_2",
    "digits_mlp_1",
    "digits_mlp_2",
    "films_ncf_1",
    "films_ncf_2",
    "flowers_net_3",
    "genes_tagger_1",
    "genes_tagger_2",
    "glyphs_dcgan_2",
    "lake_dqn_1",
    "lake_dqn_2",
    "leaves_transfer_3",
    "lungs_seg_1",
    "moons_wgan_1",
    "pairs_accelerate_1",
    "pico_gpt_2",
    "pico_gpt_3",
    "prices_lstm_2",
    "prices_lstm_3",
    "pumps_resume_1",
    "reverse_phrases_1",
    "reverse_phrases_2",
    "shapes_kd_2",
    "stories_clm_1",
    "stories_clm_2",
    "stories_clm_3",
    "tunnel_a2c_2",
    "wheat_heads_2",
    "words_amp_1",
    "words_amp_2",
)
"""Faults of `eighth_hand` that the detectors as they were found at a marked line."""

ELSEWHERE_OF_EIGHTH_HAND = (
    "flowers_net_1",
    "glyphs_dcgan_1",
    "pico_gpt_1",
    "rings_ddpm_2",
    "xrays_multi_2",
)
"""Faults of `eighth_hand` that they found at a line that is not marked."""

MISSED_OF_EIGHTH_HAND = (
    "chars_rnn_2",
    "clips_align_1",
    "credit_sheet_1",
    "ddp_shuffle_1",
    "flowers_net_2",
    "intents_trainer_1",
    "intents_trainer_2",
    "leaves_transfer_1",
    "leaves_transfer_2",
    "lungs_seg_2",
    "moons_wgan_2",
    "pairs_accelerate_2",
    "papers_links_1",
    "papers_links_2",
    "prices_lstm_1",
    "reverse_phrases_3",
    "rings_ddpm_1",
    "shapes_kd_1",
    "tones_simclr_1",
    "tunnel_a2c_1",
    "wheat_heads_1",
    "xrays_multi_1",
)
"""Faults of `eighth_hand` that they missed, or found as worth a look alone."""

ALARMS_OF_EIGHTH_HAND = ("genes_tagger_twin", "leaves_transfer_twin", "reverse_phrases_twin")
"""Clean scripts of `eighth_hand` on which something certain or likely was found at first, and with that day's changes."""

FOUND_OF_NINTH_HAND = (
    "accelerate_answers_1",
    "accelerate_answers_2",
    "audio_keywords_2",
    "char_decoder_1",
    "cifar_resnet_1",
    "ctc_numbers_2",
    "dcgan_faces_2",
    "ddp_spawn_1",
    "ddp_spawn_2",
    "gcn_papers_1",
    "gin_molecules_2",
    "grid_detector_1",
    "hf_intents_2",
    "hf_poems_clm_2",
    "house_scratch_3",
    "kd_shapes_1",
    "nano_lm_2",
    "ner_bert_1",
    "peft_chat_1",
    "ppo_point_1",
    "resume_pictures_1",
    "resume_pictures_2",
    "simclr_textures_1",
    "sst_bilstm_2",
    "taxi_tabular_3",
    "unet_organs_1",
    "unet_organs_2",
    "vae_digits_2",
    "vae_digits_3",
    "vit_finetune_2",
    "weather_lstm_1",
)
"""Faults of `ninth_hand` that the detectors as they were frozen found at a marked line."""

ELSEWHERE_OF_NINTH_HAND = (
    "cifar_resnet_2",
    "hf_intents_1",
    "hf_poems_clm_1",
    "peft_chat_2",
    "peft_chat_3",
    "sst_bilstm_1",
)
"""Faults of `ninth_hand` that they found at a line that is not marked."""

MISSED_OF_NINTH_HAND = (
    "audio_keywords_1",
    "cart_dqn_1",
    "cart_dqn_2",
    "char_decoder_2",
    "cifar_resnet_3",
    "ctc_numbers_1",
    "dates_seq2seq_1",
    "dates_seq2seq_2",
    "dcgan_faces_1",
    "gin_molecules_1",
    "house_scratch_1",
    "house_scratch_2",
    "kd_shapes_2",
    "multilabel_posts_1",
    "multilabel_posts_2",
    "nano_lm_1",
    "spiral_ddpm_1",
    "spiral_ddpm_2",
    "taxi_tabular_1",
    "taxi_tabular_2",
    "vae_digits_1",
    "vit_finetune_1",
    "weather_lstm_2",
)
"""Faults of `ninth_hand` that they missed, named otherwise, or found as worth a look alone."""

MENDED_OF_NINTH_HAND = (
    "audio_keywords_1",
    "cart_dqn_1",
    "cart_dqn_2",
    "char_decoder_2",
    "cifar_resnet_3",
    "ctc_numbers_1",
    "dates_seq2seq_1",
    "dates_seq2seq_2",
    "dcgan_faces_1",
    "gin_molecules_1",
    "house_scratch_1",
    "house_scratch_2",
    "kd_shapes_2",
    "multilabel_posts_1",
    "multilabel_posts_2",
    "nano_lm_1",
    "spiral_ddpm_1",
    "spiral_ddpm_2",
    "taxi_tabular_1",
    "taxi_tabular_2",
    "vae_digits_1",
    "vit_finetune_1",
    "weather_lstm_2",
)
"""Of those, what is found at a marked line after mending."""

AT_THE_LINE_OF_NINTH_HAND = (
    "cifar_resnet_2",
    "hf_intents_1",
    "hf_poems_clm_1",
    "peft_chat_2",
    "peft_chat_3",
    "sst_bilstm_1",
)
"""Those that were found at another line, and are found at a marked one after mending."""

NAMED_SINCE = {
    "a2c_grid_1": "ends_left_out",
    "cart_dqn_1": "ends_left_out",
    "dcgan_faces_1": "wrong_sign",
    "vae_digits_1": "read_two_ways",
}
"""Faults that had no name in the list of checks when they were planted, and the one that they have now."""

NEAR_FAULTS_OF_NINTH_HAND = ("char_decoder_twin", "dcgan_faces_twin", "gin_molecules_twin", "vae_digits_twin")
"""Clean scripts of `ninth_hand` that are as near to a fault as any to those checks that were written after it."""

ALARMS_OF_NINTH_HAND = ("gcn_papers_twin", "hf_intents_twin", "kd_shapes_clean")
"""Clean scripts of `ninth_hand` on which they found something certain or likely."""

FOUND_OF_TENTH_HAND = (
    "accelerate_vit_2",
    "bpr_movies_1",
    "bpr_movies_2",
    "churn_notebook_1",
    "churn_notebook_2",
    "ddp_tabular_1",
    "ddpm_glyphs_1",
    "ddpm_glyphs_2",
    "distil_news_2",
    "fashion_cnn_3",
    "gae_links_1",
    "gae_links_2",
    "gpt_stories_2",
    "hf_clm_recipes_2",
    "hf_reviews_1",
    "hf_reviews_2",
    "mlm_logs_2",
    "mtl_faces_2",
    "peft_intents_1",
    "resume_trainer_2",
    "sac_pendulum_1",
    "sac_pendulum_2",
    "sage_products_1",
    "speaker_aam_1",
    "speaker_aam_2",
    "ssd_shapes_1",
    "tts_fastspeech_1",
    "two_tower_1",
)
"""Faults of `tenth_hand` that the detectors as they were frozen found at a marked line."""

ELSEWHERE_OF_TENTH_HAND = (
    "deeplab_streets_1",
    "fashion_cnn_1",
    "fashion_cnn_2",
    "gpt_stories_1",
    "hf_clm_recipes_1",
    "load_forecast_1",
    "load_forecast_2",
    "mlm_logs_1",
    "mtl_faces_1",
    "sage_products_2",
    "simsiam_patches_1",
    "tts_fastspeech_2",
    "wgan_signals_2",
)
"""Faults of `tenth_hand` that they found at a line that is not marked."""

MISSED_OF_TENTH_HAND = (
    "a2c_grid_1",
    "a2c_grid_2",
    "accelerate_vit_1",
    "ddp_tabular_2",
    "deeplab_streets_2",
    "distil_news_1",
    "dpo_preferences_1",
    "dpo_preferences_2",
    "peft_intents_2",
    "pix2pix_edges_1",
    "pix2pix_edges_2",
    "resume_trainer_1",
    "sac_pendulum_3",
    "ssd_shapes_2",
    "t5_titles_1",
    "t5_titles_2",
    "triplet_faces_1",
    "triplet_faces_2",
    "wgan_signals_1",
)
"""Faults of `tenth_hand` that they missed, named otherwise, or found as worth a look alone."""

AT_THE_LINE_OF_TENTH_HAND = (
    "deeplab_streets_1",
    "fashion_cnn_1",
    "fashion_cnn_2",
    "gpt_stories_1",
    "hf_clm_recipes_1",
    "load_forecast_1",
    "load_forecast_2",
    "mlm_logs_1",
    "mtl_faces_1",
    "sage_products_2",
    "simsiam_patches_1",
    "tts_fastspeech_2",
    "wgan_signals_2",
)
"""Those that were found at another line, and are found at a marked one after mending."""

MENDED_OF_TENTH_HAND = (
    "a2c_grid_1",
    "accelerate_vit_1",
    "dpo_preferences_1",
    "dpo_preferences_2",
    "pix2pix_edges_2",
    "resume_trainer_1",
    "t5_titles_2",
    "triplet_faces_1",
    "triplet_faces_2",
)
"""Of those that they missed, what is found at a marked line after mending."""

ALARMS_OF_TENTH_HAND = (
    "gpt_stories_twin",
    "sac_pendulum_clean",
    "sac_pendulum_twin",
)
"""Clean scripts of `tenth_hand` on which they found something certain or likely."""

NEAR_FAULTS_OF_TENTH_HAND = (
    "a2c_grid_twin",
    "dpo_preferences_twin",
    "pix2pix_edges_twin",
    "wgan_signals_twin",
)
"""Clean scripts of `tenth_hand` that are as near to a fault as any to what was changed after it."""

UNKNOWN_NAMES = ("critic_frozen", "returns", "same_order")
"""Names that the tenth hand expected and that no check has; the eleventh expected the last."""

WITHOUT_MARKS = (TENTH_HAND, ELEVENTH_HAND, TWELFTH_HAND, THIRTEENTH_HAND)
"""Hands that wrote their lines down beside the scripts alone."""

FOUND_OF_ELEVENTH_HAND = (
    "accelerate_pairs_1",
    "captions_clip_1",
    "captions_clip_2",
    "ddp_rain_1",
    "digits_ctc_1",
    "dqn_pole_1",
    "dqn_pole_2",
    "fraud_embed_1",
    "fraud_embed_2",
    "grid_yolo_1",
    "grid_yolo_2",
    "hf_places_ner_2",
    "hf_tickets_1",
    "hf_tickets_2",
    "kd_textures_1",
    "kd_textures_2",
    "keyword_m5_1",
    "leaf_vae_2",
    "molecule_gin_2",
    "moons_ddpm_1",
    "moons_ddpm_2",
    "names_lstm_1",
    "names_lstm_2",
    "nano_rope_1",
    "nano_rope_2",
    "peft_smalltalk_2",
    "ppo_lander_2",
    "resume_birds_1",
    "resume_birds_2",
    "road_unet_1",
    "road_unet_2",
    "seed_resnet_1",
    "seed_resnet_2",
    "seed_resnet_3",
    "sensor_simclr_2",
    "shop_sasrec_1",
    "shop_sasrec_2",
    "songs_ncf_1",
    "songs_ncf_2",
    "stamp_dcgan_1",
    "stamp_dcgan_2",
    "tide_lstm_1",
    "wine_prices_1",
)
"""Faults of `eleventh_hand` that the detectors as they were frozen found at a marked line."""

ELSEWHERE_OF_ELEVENTH_HAND = (
    "digits_ctc_2",
    "peft_smalltalk_1",
    "plankton_transfer_1",
    "plankton_transfer_2",
)
"""Faults of `eleventh_hand` that they found at a line that is not marked."""

AT_THE_LINE_OF_ELEVENTH_HAND = (
    "digits_ctc_2",
    "peft_smalltalk_1",
    "plankton_transfer_1",
    "plankton_transfer_2",
)
"""Those of them that are said at a marked line since."""

MISSED_OF_ELEVENTH_HAND = (
    "accelerate_pairs_2",
    "ddp_rain_2",
    "energy_former_1",
    "energy_former_2",
    "hf_places_ner_1",
    "keyword_m5_2",
    "leaf_vae_1",
    "molecule_gin_1",
    "papers_gat_1",
    "papers_gat_2",
    "ppo_lander_1",
    "sensor_simclr_1",
    "tide_lstm_2",
    "tide_lstm_3",
    "wine_prices_2",
)
"""Faults of `eleventh_hand` that they missed, named otherwise, or found as worth a look alone."""

MENDED_OF_ELEVENTH_HAND = (
    "energy_former_1",
    "energy_former_2",
    "hf_places_ner_1",
    "keyword_m5_2",
    "leaf_vae_1",
    "molecule_gin_1",
    "papers_gat_1",
    "papers_gat_2",
    "ppo_lander_1",
    "sensor_simclr_1",
    "tide_lstm_2",
    "tide_lstm_3",
)
"""Faults of `eleventh_hand` that were missed and are said at a marked line since, by checks that other scripts brought."""

ALARMS_OF_ELEVENTH_HAND = ("molecule_gin_twin", "nano_rope_twin")
"""Clean scripts of `eleventh_hand` on which they found something certain or likely: none since."""

FOUND_OF_TWELFTH_HAND = (
    "a2c_ferry_2",
    "a2c_ferry_3",
    "accelerate_cells_1",
    "accelerate_cells_2",
    "charlm_resume_1",
    "charlm_resume_2",
    "charlm_resume_3",
    "ddp_glucose_1",
    "ddp_glucose_2",
    "ddp_glucose_3",
    "ema_bf16_moles_3",
    "finetune_leaves_1",
    "hf_recipes_lm_3",
    "kd_routes_1",
    "kd_routes_3",
    "linkpred_friends_2",
    "lit_reviews_1",
    "lit_reviews_3",
    "rent_trainer_1",
    "rent_trainer_3",
    "seq2seq_dates_1",
    "shapes_quickstart_2",
    "shapes_quickstart_3",
    "tcn_power_3",
    "vae_strokes_2",
    "wgan_spiral_1",
    "wgan_spiral_2",
)
"""Faults of `twelfth_hand` that the detectors as they were frozen found at a marked line."""

ELSEWHERE_OF_TWELFTH_HAND = (
    "ctc_morse_1",
    "ctc_morse_3",
    "ema_bf16_moles_1",
    "hf_recipes_lm_1",
    "hf_recipes_lm_2",
    "lit_reviews_2",
    "lora_notes_1",
    "shapes_quickstart_1",
)
"""Faults of `twelfth_hand` that they found at a line that is not marked."""

MISSED_OF_TWELFTH_HAND = (
    "a2c_ferry_1",
    "accelerate_cells_3",
    "ctc_morse_2",
    "ema_bf16_moles_2",
    "finetune_leaves_2",
    "finetune_leaves_3",
    "kd_routes_2",
    "linkpred_friends_1",
    "linkpred_friends_3",
    "lora_notes_2",
    "lora_notes_3",
    "moco_gestures_1",
    "moco_gestures_2",
    "moco_gestures_3",
    "rent_trainer_2",
    "seq2seq_dates_2",
    "seq2seq_dates_3",
    "ssd_buoys_1",
    "ssd_buoys_2",
    "ssd_buoys_3",
    "tcn_power_1",
    "tcn_power_2",
    "vae_strokes_1",
    "vae_strokes_3",
    "wgan_spiral_3",
)
"""Faults of `twelfth_hand` that they missed, named otherwise, or found as worth a look alone."""

MENDED_OF_TWELFTH_HAND = (
    "a2c_ferry_1",
    "accelerate_cells_3",
    "ema_bf16_moles_2",
    "finetune_leaves_2",
    "kd_routes_2",
    "linkpred_friends_1",
    "linkpred_friends_3",
    "lora_notes_2",
    "lora_notes_3",
    "moco_gestures_1",
    "moco_gestures_2",
    "moco_gestures_3",
    "rent_trainer_2",
    "seq2seq_dates_2",
    "seq2seq_dates_3",
    "ssd_buoys_2",
    "tcn_power_1",
    "tcn_power_2",
    "vae_strokes_1",
    "vae_strokes_3",
    "wgan_spiral_3",
)
"""Of those, what is found at a marked line since, by checks that were written for its kind."""

AT_THE_LINE_OF_TWELFTH_HAND = ("ctc_morse_1", "ctc_morse_3", "lora_notes_1")
"""Those that were found at another line, and are said at a marked one since."""

NEAR_FAULTS_OF_TWELFTH_HAND = (
    "a2c_ferry_twin",
    "accelerate_cells_twin",
    "ctc_morse_twin",
    "ema_bf16_moles_twin",
    "finetune_leaves_twin",
    "kd_routes_twin",
    "kd_routes_twin2",
    "linkpred_friends_twin",
    "lora_notes_twin",
    "moco_gestures_twin",
    "rent_trainer_twin",
    "seq2seq_dates_twin",
    "tcn_power_twin",
    "wgan_spiral_twin",
    "wgan_spiral_twin2",
)
"""Clean scripts of `twelfth_hand` that are as near to a fault as any to what was written after it."""

ALARMS_OF_TWELFTH_HAND = (
    "a2c_ferry_twin2",
    "charlm_resume_twin",
    "charlm_resume_twin2",
    "hf_recipes_lm_twin",
    "hf_recipes_lm_twin2",
    "ssd_buoys_twin",
    "vae_strokes_twin",
)
"""Clean scripts of `twelfth_hand` on which they found something certain or likely."""

MEASURED_IN_SECONDS = ("ssd_buoys_twin",)
"""Those of them of which it was said that they wait for data about as long as they compute, which differs from machine to machine."""

FOUND_OF_THIRTEENTH_HAND = (
    "accelerate_ner_1",
    "accelerate_ner_3",
    "active_pool_3",
    "dcgan_icons_1",
    "dcgan_icons_2",
    "gcn_papers_1",
    "gcn_papers_2",
    "gcn_papers_3",
    "hf_triage_1",
    "maml_sines_2",
    "mtl_soil_1",
    "mtl_soil_2",
    "peft_tickets_2",
    "simclr_glyphs_1",
    "simclr_glyphs_2",
    "spawn_weather_2",
    "speech_mels_3",
    "translate_noam_1",
    "translate_noam_3",
    "unet_roads_1",
)
"""Faults of `thirteenth_hand` that the detectors as they were frozen found at a marked line."""

ELSEWHERE_OF_THIRTEENTH_HAND = (
    "ddpm_rings_1",
    "hf_triage_2",
    "mtl_soil_3",
    "peft_tickets_3",
)
"""Faults of `thirteenth_hand` that they found at a line that is not marked."""

MISSED_OF_THIRTEENTH_HAND = (
    "accelerate_ner_2",
    "active_pool_1",
    "active_pool_2",
    "dcgan_icons_3",
    "ddpm_rings_2",
    "ddpm_rings_3",
    "deepar_sales_1",
    "deepar_sales_2",
    "deepar_sales_3",
    "fedavg_clinics_1",
    "fedavg_clinics_2",
    "fedavg_clinics_3",
    "gpt_sums_1",
    "gpt_sums_2",
    "gpt_sums_3",
    "hf_triage_3",
    "maml_sines_1",
    "maml_sines_3",
    "peft_tickets_1",
    "ppo_crane_1",
    "ppo_crane_2",
    "ppo_crane_3",
    "simclr_glyphs_3",
    "spawn_weather_1",
    "spawn_weather_3",
    "speech_mels_1",
    "speech_mels_2",
    "translate_noam_2",
    "twotower_books_1",
    "twotower_books_2",
    "twotower_books_3",
    "unet_roads_2",
    "unet_roads_3",
    "yolo_parcels_1",
    "yolo_parcels_2",
    "yolo_parcels_3",
)
"""Faults of `thirteenth_hand` that they missed, named otherwise, or found as worth a look alone."""

MENDED_OF_THIRTEENTH_HAND = (
    "active_pool_1",
    "deepar_sales_1",
    "fedavg_clinics_2",
    "fedavg_clinics_3",
    "hf_triage_3",
    "maml_sines_3",
    "ppo_crane_1",
    "spawn_weather_3",
)
"""Of those, what is found at a marked line since, each by a check of a property that any script can break."""

NEAR_FAULTS_OF_THIRTEENTH_HAND = (
    "active_pool_twin",
    "deepar_sales_twin",
    "fedavg_clinics_twin",
    "hf_triage_twin",
    "maml_sines_twin",
    "ppo_crane_twin",
    "ppo_crane_twin2",
    "spawn_weather_twin",
)
"""Clean scripts of `thirteenth_hand` that are as near to a fault as any to what was written after it."""

ALARMS_OF_THIRTEENTH_HAND = (
    "simclr_glyphs_twin",
    "translate_noam_twin",
    "translate_noam_twin2",
)
"""Clean scripts of `thirteenth_hand` on which they found something certain or likely."""

RANKS_OF_THIRD_HAND = ("ddp_through_module", "ddp_two_ranks", "epoch_never_set", "norms_clipped_on_rank_zero")
"""Scripts of `third_hand` that start ranks of their own, and so run as commands."""

ALARMS_AT_FIRST = ("hf_bert_trainer", "nanogpt_bf16")
"""Clean scripts of `second_hand` that had something certain or likely at first."""

TRUE_AFTER_ALL = {
    "hf_bert_trainer": "accumulation: transformers 5.23 hands num_items_in_batch to a classifier whose loss ignores it, and does "
    "not divide; the first gradient has a norm of 0.53 with two micro-batches of 8 and of 0.26 with one of 16",
}
"""Scripts that were written as clean and are not: what is said of them is true."""


def scripts(folder: str) -> list[Path]:
    """The scripts of `faulty`, `fresh` or `clean`, or of these two folders of another hand."""
    return sorted((HERE / folder).glob("*.py"))


def expected(hand: Path = SECOND_HAND) -> dict[str, dict[str, dict[str, Any]]]:
    """What another hand's scripts were written to show: by folder and script."""
    return json.loads((hand / "expected.json").read_text())


def missing_package(script: Path) -> str:
    """The package of `.[bench]` that the script imports and that is not installed; "" if there is none."""
    imported: set[str | None] = set()
    for node in ast.walk(ast.parse(script.read_text())):
        if isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported.add(node.module)
    needed = any(str(name).partition(".")[0] == "lightning" for name in imported)
    return "lightning" if needed and importlib.util.find_spec("lightning") is None else ""


@dataclass(frozen=True)
class Case:
    """What the doctor says of one script."""

    script: Path
    findings: tuple[Finding, ...]
    complete: bool
    """Whether the script ran to its end."""
    failure: str
    """What the doctor itself failed with; "" if with nothing."""

    @property
    def pitfalls(self) -> list[str]:
        """The names of the planted fault, each of which is right; none of a clean script."""
        for hand in (
            SECOND_HAND,
            THIRD_HAND,
            FOURTH_HAND,
            FIFTH_HAND,
            NINTH_HAND,
            TENTH_HAND,
            ELEVENTH_HAND,
            TWELFTH_HAND,
            THIRTEENTH_HAND,
        ):
            if hand in self.script.parents:
                named = expected(hand)["faulty"].get(self.script.stem, {}).get("pitfalls", ())
                return [*named, *filter(None, [NAMED_SINCE.get(self.script.stem)])]
        return [self.script.stem.rpartition("_")[0]]

    @property
    def marked(self) -> list[int]:
        """The lines that the script marks, or that are written down beside it, as those of hands since the tenth."""
        for hand in WITHOUT_MARKS:
            if hand in self.script.parents:
                spans = expected(hand)["faulty"].get(self.script.stem, {}).get("lines", {})
                return [
                    each for first, last in spans.get(self.script.name, ()) for each in range(first, last + 1)
                ]
        lines = self.script.read_text().splitlines()
        return [number for number, line in enumerate(lines, start=1) if MARK in line]

    @property
    def found(self) -> list[Finding]:
        """The findings of the planted fault."""
        return [finding for finding in self.findings if finding.pitfall in self.pitfalls]

    @property
    def at_the_mark(self) -> bool:
        """Whether one of them names a marked line of the script."""
        places = {f"{self.script.name}:{number}" for number in self.marked}
        return any(Path(finding.where).name in places for finding in self.found)


def examine(script: Path) -> Case:
    """Run a script under observation: in this process, or in one of its own where it forks workers of a loader, spawns ranks or makes a process group.

    A fork of this process has the locks that another of its threads held, and none to let go of them: a worker may wait for ever.
    So may this process where a model in DistributedDataParallel is the last to hold its group: torch (2.13) then joins gloo's
    thread with the interpreter's lock held, and that thread may want the lock to let go of its last exchange.
    """
    if _FORKS_OR_MEETS.search(script.read_text()):
        seen = observe([sys.executable, str(script)])
        return Case(script, seen.findings, complete=seen.exit_code == 0, failure=seen.failure)
    log = _watched_here(script)
    return Case(script, diagnose([log]), complete=log.complete, failure=log.failure)


def _watched_here(script: Path) -> Log:
    """Undo what a script does to torch; modules of its own are forgotten, which would be the next one's."""
    namespaces = [(module, dict(vars(module))) for module in (distributed, torch.cpu)]
    try:
        return watch_script(script)
    finally:
        for module, names in namespaces:
            vars(module).update(names)
        torch.autograd.set_detect_anomaly(mode=False)
        if distributed.is_initialized():
            distributed.destroy_process_group()
        for name, module in list(sys.modules.items()):
            if str(script.parent) in str(getattr(module, "__file__", None)):
                del sys.modules[name]
