import js from "@eslint/js";
import { defineConfig } from "eslint/config";
import ts from "typescript-eslint";

export default defineConfig(
  { ignores: ["node_modules"] },
  js.configs.recommended,
  ts.configs.strictTypeChecked,
  ts.configs.stylisticTypeChecked,
  {
    languageOptions: { parserOptions: { project: "./tsconfig.json" } },
    rules: {
      "max-lines": ["error", 400],
      "no-restricted-properties": [
        "error",
        { property: "innerHTML", message: "What a model writes never becomes HTML." },
        { property: "outerHTML", message: "What a model writes never becomes HTML." },
        { property: "insertAdjacentHTML", message: "What a model writes never becomes HTML." },
      ],
      "no-restricted-syntax": [
        "error",
        {
          selector: "JSXAttribute[name.name='dangerouslySetInnerHTML']",
          message: "What a model writes never becomes HTML.",
        },
      ],
      "@typescript-eslint/restrict-template-expressions": ["error", { allowNumber: true }],
      "@typescript-eslint/no-misused-promises": ["error", { checksVoidReturn: false }],
      "@typescript-eslint/no-unused-vars": ["error", { varsIgnorePattern: "^_$" }],
      "@typescript-eslint/no-confusing-void-expression": ["error", { ignoreArrowShorthand: true }],
    },
  },
  { files: ["eslint.config.js"], extends: [ts.configs.disableTypeChecked] },
  { files: ["test/**"], rules: { "@typescript-eslint/no-floating-promises": "off" } },
);
