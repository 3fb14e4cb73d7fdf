"""Small models and data sets, under the names that Lightning's demos have."""
