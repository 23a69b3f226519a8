export default {
  input: 'openapi.json',
  output: { path: 'gen', tsConfigPath: `${process.cwd()}/tsconfig.json` },
  plugins: ['@hey-api/client-fetch', '@hey-api/typescript', '@hey-api/sdk'],
  logs: { level: 'silent' },
};
